"""Training steps, compiled once for all schemes, rates and seeds of a shape."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from experiments.study import shapes
from experiments.study.devices import AXIS, REPLICATED, replicated
from experiments.study.loss import cross_entropy
from experiments.study.model import GPT
from experiments.study.optimizer import optimizer
from experiments.study.protocol import Protocol
from experiments.study.shapes import Shape, Traced

Gradients = tuple[jax.Array, Any, jax.Array]


class State(NamedTuple):
    """What a step changes."""

    params: Any
    optimizer: Any


@dataclasses.dataclass(frozen=True)
class Setting:
    """What an executable is compiled for.

    Arguments:
        shape: of the network.
        protocol: how it is trained.
        mesh: devices that share each batch.
        at_once: runs that are trained side by side.
    """

    shape: Shape
    protocol: Protocol
    mesh: Mesh
    at_once: int = 1

    def together(self, of_one: Callable[..., Any], axes: tuple[int | None, ...]) -> Any:
        """A function of one run, for all that are trained side by side."""
        return of_one if self.at_once == 1 else jax.vmap(of_one, in_axes=axes)


@dataclasses.dataclass(frozen=True)
class Executable:
    """A compiled function with the seconds that compiling took."""

    call: Any
    seconds: float


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


def loss_and_gradients(model: GPT, params: Any, tokens: jax.Array, targets: jax.Array) -> Gradients:
    """The loss, its gradient, and the part of the table's that comes through the output layer."""

    def loss_of(params: Any, output: jax.Array) -> jax.Array:
        return cross_entropy(hidden(model, params, tokens), output, targets.reshape(-1))

    with_respect_to = params, output_table(params)
    loss, (gradients, as_output) = jax.value_and_grad(loss_of, (0, 1))(*with_respect_to)
    return loss, gradients, as_output


def over_devices(
    mesh: Mesh, model_of: Callable[..., GPT], params: Any, numbers: Traced, *batch: jax.Array
) -> Gradients:
    """`loss_and_gradients` of a batch that the devices of the mesh share."""
    if mesh.size == 1:
        return loss_and_gradients(model_of(numbers.lookup, numbers.logits), params, *batch)

    def part(params: Any, numbers: Traced, *batch: jax.Array) -> Gradients:
        own = [
            jax.lax.dynamic_slice_in_dim(
                array, jax.lax.axis_index(AXIS) * (len(array) // mesh.size), len(array) // mesh.size
            )
            for array in batch
        ]
        found = loss_and_gradients(model_of(numbers.lookup, numbers.logits), params, *own)
        return jax.lax.pmean(found, AXIS)

    inputs = (REPLICATED,) * (2 + len(batch))
    shared = jax.shard_map(part, mesh=mesh, in_specs=inputs, out_specs=REPLICATED, check_vma=False)
    return shared(params, numbers, *batch)


def summed(gradients: Any, as_output: jax.Array) -> tuple[Any, jax.Array]:
    """The gradient of the parameters, and |table's gradient as input| / |as output|."""
    as_input = gradients["table"]["embedding"]
    ratio = jnp.linalg.norm(as_input) / jnp.linalg.norm(as_output)
    if "head" in gradients:
        return {**gradients, "head": as_output}, ratio
    return {**gradients, "table": {"embedding": as_input + as_output}}, ratio


def start(setting: Setting, params: Any, numbers: Traced) -> Any:
    """The optimizer's state before the first step, for one run."""
    plan = shapes.plan_of(setting.shape)
    return optimizer(setting.protocol, plan, params, numbers).init(params)


def advance(
    setting: Setting, count: int, state: State, numbers: Traced, text: jax.Array, first: Any
) -> tuple[State, tuple[jax.Array, jax.Array]]:
    """Take `count` steps of one run from step `first` on; the loss and gradient ratio of each."""
    protocol, plan = setting.protocol, shapes.plan_of(setting.shape)
    key = jax.random.key(numbers.seed)

    def step(state: State, index: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        key_of_step = jax.random.fold_in(key, index)
        batch = random_windows(key_of_step, text, protocol.batch, protocol.window)
        loss, *parts = over_devices(
            setting.mesh, setting.shape.model, state.params, numbers, *batch
        )
        gradients, ratio = summed(*parts)
        adamw = optimizer(protocol, plan, state.params, numbers)
        updates, inner = adamw.update(gradients, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), inner), (loss, ratio)

    return jax.lax.scan(step, state, first + jnp.arange(count))


@functools.cache
def starting(setting: Setting) -> Any:
    """The compiled `start`, for all runs side by side."""
    together = setting.together(functools.partial(start, setting), (0, 0))
    return jax.jit(together, out_shardings=replicated(setting.mesh))


@functools.cache
def steps(setting: Setting, count: int, text_length: int) -> Executable:
    """The compiled `advance`: (state, numbers, text, first) → (state, (losses, ratios)).

    The state that is passed in is given up: its memory becomes the new one's.
    """
    of_one = functools.partial(advance, setting, count)
    together = setting.together(of_one, (0, 0, None, None))
    everywhere = replicated(setting.mesh)
    compiled = jax.jit(together, donate_argnums=0, out_shardings=everywhere)

    def abstract(tree: Any) -> Any:
        lead = () if setting.at_once == 1 else (setting.at_once,)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(lead + jnp.shape(x), x.dtype, sharding=everywhere), tree
        )

    shape = setting.shape
    numbers = shapes.traced_example()
    params = jax.eval_shape(lambda: shape.model().init(jax.random.key(0), shapes.EXAMPLE)["params"])
    state = State(params, jax.eval_shape(functools.partial(start, setting), params, numbers))
    text = jax.ShapeDtypeStruct((text_length,), jnp.int32, sharding=everywhere)
    first = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    began = time.perf_counter()
    call = compiled.lower(abstract(state), abstract(numbers), text, first).compile()
    return Executable(call, time.perf_counter() - began)
