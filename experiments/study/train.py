"""One run: AdamW on random windows of the text, compiled once for all schemes, rates and seeds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import anyinit
import anyinit.flax
from experiments.study.loss import cross_entropy
from experiments.study.model import GPT
from experiments.study.protocol import Protocol, Scheme

VALIDATION_SEED = 1234
STEPS_AT_ONCE = 50
EXAMPLE = np.zeros((1, 8), np.int32)  # tokens, of which only the shape counts


@dataclasses.dataclass(frozen=True)
class Shape:
    """What selects an executable; all other numbers of a scheme are traced."""

    vocab: int
    width: int
    layers: int
    tied: bool

    def model(self, lookup: float | jax.Array = 1.0, logits: float | jax.Array = 1.0) -> GPT:
        """The network with these multipliers; matrices in bfloat16 except on a CPU."""
        dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
        return GPT(self.vocab, self.width, self.layers, self.tied, lookup, logits, dtype)


class Traced(NamedTuple):
    """The numbers in which the steps of one shape differ."""

    lookup: float
    logits: float
    matched: bool
    rate: float = 0.0


class State(NamedTuple):
    """What a step changes."""

    params: Any
    optimizer: Any


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: losses and gradient ratios step by step, and the validation loss."""

    validation_loss: float
    losses: np.ndarray
    ratios: np.ndarray


def shape_of(protocol: Protocol, scheme: Scheme, width: int) -> Shape:
    """The shape of a scheme's network."""
    return Shape(protocol.vocab, width, protocol.layers, scheme.tied)


def traced(scheme: Scheme, width: int, rate: float = 0.0) -> Traced:
    """A scheme's numbers at this width."""
    return Traced(scheme.lookup(width), scheme.logits(width), scheme.matched, rate)


@functools.cache
def plan_of(shape: Shape) -> anyinit.Plan:
    """The library's plan of D at this shape, or of E where the table is not tied."""
    model = shape.model(logits=shape.width**-0.5 if shape.tied else 1.0)
    return anyinit.flax.plan(model, EXAMPLE)


def initial_params(shape: Shape, scheme: Scheme, seed: int) -> Any:
    """Parameters before training: the table as the scheme has it, the rest alike everywhere."""
    key = jax.random.key(seed)
    if scheme.library:
        return _by_library(shape, key, scheme)
    untied = dataclasses.replace(shape, tied=False)  # so that one executable draws for all
    params = _by_scheme(untied, key, scheme.table_std(shape.width))
    return without_head(params) if shape.tied else params


@functools.partial(jax.jit, static_argnames=("shape", "scheme"))
def _by_library(shape: Shape, key: jax.Array, scheme: Scheme) -> Any:
    model = shape.model(scheme.lookup(shape.width), scheme.logits(shape.width))
    return anyinit.flax.init(model, key, EXAMPLE)["params"]


@functools.partial(jax.jit, static_argnames="shape")
def _by_scheme(shape: Shape, key: jax.Array, table_std: float) -> Any:
    params = shape.model().init(key, EXAMPLE)["params"]
    table = params["table"]["embedding"] * table_std  # drawn at 1
    return {**params, "table": {"embedding": table}}


def optimizer(
    protocol: Protocol, plan: anyinit.Plan, params: Any, numbers: Traced
) -> optax.GradientTransformation:
    """AdamW in the library's partition; where nothing is matched, every label has one rate."""

    def adamw(learning_rate: float | jax.Array) -> optax.GradientTransformation:
        peak = jnp.where(numbers.matched, learning_rate, numbers.rate)
        return optax.adamw(
            lambda step: peak * schedule(protocol, step), b1=0.9, b2=0.95, weight_decay=0.0
        )

    partition = anyinit.optax_partition(params, adamw, plan=plan, learning_rate=numbers.rate)
    return optax.chain(optax.clip_by_global_norm(1.0), partition)


def schedule(protocol: Protocol, step: Any) -> jax.Array:
    """Linear warm-up times a cosine from 1 to 0.1."""
    cosine = 0.55 + 0.45 * jnp.cos(math.pi * step / protocol.steps)
    return jnp.minimum(1.0, (step + 1) / protocol.warmup) * cosine


def without_head(params: Any) -> Any:
    """The parameters that every scheme has."""
    return {name: leaf for name, leaf in params.items() if name != "head"}


def hidden(model: GPT, params: Any, tokens: jax.Array) -> jax.Array:
    """What the output layer multiplies, in the dtype in which it does: [tokens, d]."""
    rows: Any = model.apply({"params": params}, tokens, method=GPT.hidden)
    return jnp.asarray(rows, model.dtype)


def output_table(params: Any) -> jax.Array:
    """The table that the output layer multiplies with."""
    return jnp.asarray(params["head"] if "head" in params else params["table"]["embedding"])


def random_windows(
    key: jax.Array, text: jax.Array, count: int, window: int
) -> tuple[jax.Array, jax.Array]:
    """Tokens and the tokens that follow them, in `count` windows of the text."""
    starts = jax.random.randint(key, (count, 1), 0, len(text) - window)
    tokens = text[starts + jnp.arange(window + 1)]
    return tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(
    model: GPT, params: Any, tokens: jax.Array, targets: jax.Array
) -> tuple[jax.Array, Any, jax.Array]:
    """The loss, its gradient, and |table's gradient as input| / |as output|."""

    def loss_of(params: Any, output: jax.Array) -> jax.Array:
        return cross_entropy(hidden(model, params, tokens), output, targets.reshape(-1))

    with_respect_to = params, output_table(params)
    loss, (gradients, as_output) = jax.value_and_grad(loss_of, (0, 1))(*with_respect_to)
    as_input = gradients["table"]["embedding"]
    ratio = jnp.linalg.norm(as_input) / jnp.linalg.norm(as_output)
    if model.tied:
        return loss, {**gradients, "table": {"embedding": as_input + as_output}}, ratio
    return loss, {**gradients, "head": as_output}, ratio


@functools.partial(jax.jit, static_argnames=("shape", "protocol", "plan"))
def start(
    params: Any, numbers: Traced, *, shape: Shape, protocol: Protocol, plan: anyinit.Plan
) -> Any:
    """The optimizer's state before the first step."""
    return optimizer(protocol, plan, params, numbers).init(params)


@functools.partial(
    jax.jit, static_argnames=("shape", "protocol", "plan", "count"), donate_argnames="state"
)
def advance(
    state: State,
    numbers: Traced,
    text: jax.Array,
    key: jax.Array,
    first: int,
    *,
    shape: Shape,
    protocol: Protocol,
    plan: anyinit.Plan,
    count: int,
) -> tuple[State, tuple[jax.Array, jax.Array]]:
    """Take `count` steps from step `first` on; the loss and the gradient ratio of each."""
    model = shape.model(numbers.lookup, numbers.logits)

    def step(state: State, index: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        batch = random_windows(
            jax.random.fold_in(key, index), text, protocol.batch, protocol.window
        )
        loss, gradients, ratio = loss_and_gradients(model, state.params, *batch)
        adamw = optimizer(protocol, plan, state.params, numbers)
        updates, inner = adamw.update(gradients, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), inner), (loss, ratio)

    return jax.lax.scan(step, state, first + jnp.arange(count))


@functools.partial(jax.jit, static_argnames=("shape", "protocol"))
def evaluate(
    params: Any,
    output: jax.Array,
    numbers: Traced,
    text: jax.Array,
    *,
    shape: Shape,
    protocol: Protocol,
) -> jax.Array:
    """Mean loss on the fixed validation windows, `params` being those without the head."""
    model = shape.model(numbers.lookup, numbers.logits)
    count, window = protocol.validation_windows, protocol.window
    tokens, targets = random_windows(jax.random.key(VALIDATION_SEED), text, count, window)

    def loss_of(batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        rows, targets = hidden(model, params, batch[0]), batch[1].reshape(-1)
        return cross_entropy(rows, output, targets)

    size = math.gcd(count, protocol.batch)
    batches = tokens.reshape(-1, size, window), targets.reshape(-1, size, window)
    return jnp.mean(jax.lax.map(loss_of, batches))


def run(
    protocol: Protocol,
    scheme: Scheme,
    width: int,
    rate: float,
    seed: int,
    train: jax.Array,
    validation: jax.Array,
    on_steps: Callable[[int], object] = lambda count: None,
) -> Result:
    """Train one network and judge it; `on_steps` hears of every few steps taken."""
    shape, numbers = shape_of(protocol, scheme, width), traced(scheme, width, rate)
    fixed = {"shape": shape, "protocol": protocol, "plan": plan_of(shape)}
    params = initial_params(shape, scheme, seed)
    state = State(params, start(params, numbers, **fixed))
    key = jax.random.key(seed)
    count = max(n for n in range(1, STEPS_AT_ONCE + 1) if protocol.steps % n == 0)
    losses, ratios = [], []
    for first in range(0, protocol.steps, count):
        state, curves = advance(state, numbers, train, key, first, count=count, **fixed)
        losses.append(np.asarray(curves[0]))
        ratios.append(np.asarray(curves[1]))
        on_steps(count)
    body, output = without_head(state.params), output_table(state.params)
    fixed_windows = {"shape": dataclasses.replace(shape, tied=True), "protocol": protocol}
    loss = evaluate(body, output, numbers, validation, **fixed_windows)
    return Result(float(loss), np.concatenate(losses), np.concatenate(ratios))
