"""One run: a model initialized, trained at one rate, and measured before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import anyinit
from anyinit import Plan
from experiments.comparison.catalogue import Task
from experiments.comparison.examples import Batch

INITIALIZATIONS = {
    "default": "Flax's default",
    "analytic": "anyinit, analytic",
    "empirical": "anyinit, empirical",
}
SAME_RATE = 1e-3  # below, the partition makes no label of its own
HELD_OUT_SEED = 1_000_003  # no seed of a run


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every run gets.

    Arguments:
        steps: of training.
        warmup: steps over which the rate rises; it then falls linearly to a tenth.
        held_out: batches that the loss is measured on.
    """

    steps: int
    warmup: int
    held_out: int

    def schedule(self, rate: Any) -> Callable[[Any], Any]:
        """The learning rate by step; `rate`, its largest, may be traced."""

        def at(step: Any) -> Any:
            rising = (step + 1) / self.warmup
            falling = 1 - 0.9 * (step - self.warmup) / max(1, self.steps - self.warmup)
            return rate * jnp.minimum(rising, falling)

        return at


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a run begins: parameters, and the plan that made them (None: Flax's default)."""

    params: Mapping[str, Any]
    plan: Plan | None

    @property
    def rates(self) -> frozenset[tuple[str, float]]:
        """The multipliers of the rates other than 1, by weight: what selects the program."""
        rows = () if self.plan is None else self.plan.weights
        return frozenset((row.path, round(row.m, 6)) for row in rows if abs(row.m - 1) > SAME_RATE)


def start(task: Task, initialization: str, seed: int) -> Start:
    """Initialize the task's model; all initializations draw from the same key.

    The empirical one measures on the first training batch.
    """
    key, first = jax.random.key(seed), _batch_key(seed, 0)
    inputs, _ = task.train(first)
    if initialization == "default":
        return Start(task.model.init(key, inputs)["params"], None)
    variables = anyinit.flax.init(task.model, key, inputs, mode=initialization)
    return Start(variables["params"], variables.plan)


class Trainer:
    """Trains a task; compiled once for all seeds, rates and initializations of an optimizer.

    Flax's default is trained by plain AdamW, the others by AdamW in `anyinit.optax_partition`.
    Where the plan gives no weight a rate of its own, that is plain AdamW, and one program serves.
    """

    def __init__(self, task: Task, budget: Budget) -> None:
        """Make a trainer that has not compiled anything yet."""
        self._task, self._budget = task, budget
        self._programs: dict[Any, Program] = {}

    def program(self, begin: Start) -> Program:
        """The compiled program that this start needs."""
        if begin.rates not in self._programs:
            self._programs[begin.rates] = compiled(self._task, self._budget, begin)
        return self._programs[begin.rates]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled run.

    The steps are called one by one, not by `lax.scan`: on a CPU a convolution inside of a loop
    takes ten to twenty times as long (https://github.com/jax-ml/jax/issues/12868).

    Arguments:
        steps: how many there are.
        begin: (params, rate) → the optimizer's state.
        step: (params, state, rate, seed, number) → the same two after a step.
        held_out: params → the mean loss on the batches that are not trained on.
    """

    steps: int
    begin: Any
    step: Any
    held_out: Any

    def train(self, params: Any, rate: float, seed: int) -> dict[str, float]:
        """The held-out loss before and after training; several threads may call this."""
        initial = float(self.held_out(params))
        rate, seed = np.float32(rate), np.int32(seed)
        state = self.begin(params, rate)
        for number in range(self.steps):
            params, state = self.step(params, state, rate, seed, np.int32(number))
        return {"initial_loss": initial, "loss": float(self.held_out(params))}


def compiled(task: Task, budget: Budget, begin: Start) -> Program:
    """Compile a run with the optimizer that goes with this start."""

    def optimizer(params: Any, rate: Any) -> optax.GradientTransformation:
        schedule = budget.schedule(rate)
        if not begin.rates:
            return optax.adamw(schedule)
        return anyinit.optax_partition(params, plan=begin.plan, learning_rate=schedule)

    def loss_of(params: Any, batch: Batch) -> jax.Array:
        inputs, targets = batch
        return task.loss(task.model.apply({"params": params}, inputs), targets)

    def first_state(params: Any, rate: jax.Array) -> Any:
        return optimizer(params, rate).init(params)

    def step(
        params: Any, state: Any, rate: jax.Array, seed: jax.Array, number: jax.Array
    ) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of)(params, task.train(_batch_key(seed, number)))
        updates, state = optimizer(params, rate).update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    keys = jax.random.split(jax.random.key(HELD_OUT_SEED), budget.held_out)
    held_out_loss = jax.jit(lambda params, key: loss_of(params, task.held_out(key)))

    def held_out(params: Any) -> float:
        return sum(float(held_out_loss(params, key)) for key in keys) / len(keys)

    rate, whole = jnp.float32(0), jnp.int32(0)
    state = jax.eval_shape(first_state, begin.params, rate)
    return Program(
        budget.steps,
        jax.jit(first_state).lower(begin.params, rate).compile(),
        jax.jit(step).lower(begin.params, state, rate, whole, whole).compile(),
        held_out,
    )


def _batch_key(seed: Any, step: Any) -> jax.Array:
    """The key of a training batch, the same whatever the rate and the initialization."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(7), seed), step)
