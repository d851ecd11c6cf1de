"""Runs trained side by side, from the first parameters to the validation loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.study import step
from experiments.study.devices import replicate
from experiments.study.evaluation import evaluating
from experiments.study.initialization import initial_params, without_head
from experiments.study.protocol import Protocol
from experiments.study.runs import Run
from experiments.study.shapes import shape_of, traced

STEPS_AT_ONCE = 25


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: losses and gradient ratios step by step, and the validation loss."""

    validation_loss: float
    losses: np.ndarray
    ratios: np.ndarray


def train(
    protocol: Protocol,
    runs: Sequence[Run],
    mesh: Mesh,
    at_once: int,
    text: jax.Array,
    validation: jax.Array,
    on_steps: Callable[[int], object] = lambda count: None,
) -> list[Result]:
    """Train networks of one shape and judge them; `on_steps` hears of every few steps taken.

    Arguments:
        protocol: how they are trained.
        runs: at most `at_once` of them.
        mesh: devices that share each batch.
        at_once: runs of one executable; where `runs` are fewer, the last one is repeated.
        text: training tokens on every device of the mesh, [length].
        validation: validation tokens on every device of the mesh, [length].
        on_steps: called with the steps that all runs together have advanced.
    """
    padded = [*runs, *[runs[-1]] * (at_once - len(runs))]
    shape = shape_of(protocol, runs[0].scheme, runs[0].width)
    setting = step.Setting(shape, protocol, mesh, at_once)
    count = steps_at_once(protocol)
    advance = step.steps(setting, count, len(text)).call
    state, numbers = starting_state(setting, padded)
    losses, ratios = [], []
    for first in range(0, protocol.steps, count):
        state, curves = advance(state, numbers, text, replicate(np.int32(first), mesh))
        losses.append(np.asarray(curves[0]))
        ratios.append(np.asarray(curves[1]))
        on_steps(count * len(runs))
    body, output = without_head(state.params), step.output_table(state.params)
    tied = dataclasses.replace(setting, shape=dataclasses.replace(shape, tied=True))
    judged = np.atleast_1d(np.asarray(evaluating(tied)(body, output, numbers, validation)))
    each = (np.atleast_2d(np.concatenate(curve, axis=-1)) for curve in (losses, ratios))
    found = zip(judged.tolist(), *each, strict=True)
    return [Result(*of_one) for of_one, _ in zip(found, runs, strict=False)]


def starting_state(setting: step.Setting, runs: Sequence[Run]) -> tuple[step.State, Any]:
    """State and numbers of `setting.at_once` runs before the first step."""
    numbers = [traced(run.scheme, run.width, run.rate, run.seed) for run in runs]
    drawn = (initial_params(setting.shape, run.scheme, run.seed, setting.mesh) for run in runs)
    if setting.at_once == 1:
        params, stacked = next(drawn), numbers[0]
    else:
        params = jax.jit(lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees))(*drawn)
        stacked = jax.tree.map(lambda *x: np.stack(x), *numbers)
    everywhere = replicate(stacked, setting.mesh)
    return step.State(params, step.starting(setting)(params, everywhere)), everywhere


def steps_at_once(protocol: Protocol) -> int:
    """Steps between two reports: the largest divisor that is not too many."""
    return max(n for n in range(1, STEPS_AT_ONCE + 1) if protocol.steps % n == 0)
