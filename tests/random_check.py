"""What a generated model must show: nothing is missed, and what it computes is as planned."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from flat_run import Deviation, measured
from measure import assert_complete, normal, tokens
from random_models import VOCAB, Architecture, D, Random

SHAPES = {"vectors": (64, D), "sequences": (20, 6, D), "images": (4, 8, 8, 3)}
NEAR = 2.0
LOW, HIGH = 0.8, 1.25


@dataclasses.dataclass(frozen=True)
class Examined:
    """What a model has shown.

    Arguments:
        architecture: the model.
        sites: every site's prediction and measurement.
        outputs: measured second moment of the logits.
        failures: sentences about what is not as it must be.
    """

    architecture: Architecture
    sites: tuple[Deviation, ...]
    outputs: tuple[float, ...]
    failures: tuple[str, ...]

    @property
    def ratios(self) -> list[float]:
        """By what factor each site is off."""
        return [site.ratio for site in self.sites]


def examine(architecture: Architecture, seeds: int = 2, more: int = 10) -> Examined:
    """Plan, initialize and run a model; look again with `more` seeds where it seems to be off."""
    found = _examined(architecture, seeds)
    return _examined(architecture, more) if found.failures and more else found


def inputs_of(architecture: Architecture, seed: int) -> tuple[jax.Array]:
    """Fresh inputs."""
    if architecture.inputs == "tokens":
        return (tokens(seed, VOCAB, (16, 8)),)
    return (normal(seed, SHAPES[architecture.inputs]),)


def _examined(architecture: Architecture, seeds: int) -> Examined:
    model = Random(architecture)

    def fresh(seed: int) -> tuple[jax.Array]:
        return inputs_of(architecture, seed)

    found = measured(model, fresh, seeds=seeds, draw=_quick_keys)
    assert_complete(found.plan, found.variables)
    _assert_idempotent(found.plan, found.variables)
    assert found.difference < 1e-3, "the flat graph computes something else than the model"
    failures = [
        f"{site.path}, {site.acts}: predicted {site.predicted:.3g}, measured {site.measured:.3g}"
        for site in found.sites
        if site.ratio > NEAR
    ]
    from_above = any(site.at_most for site in found.sites if site.acts == "output")
    failures += [
        f"logits at {moment:.3g}"
        for moment in found.outputs
        if moment > HIGH or (moment < LOW and not from_above)
    ]
    return Examined(architecture, found.sites, found.outputs, tuple(failures))


def _quick_keys(seed: int) -> dict[str, jax.Array]:
    """Keys of the generator that compiles fastest."""
    key = jax.random.key(seed, impl="rbg")
    return {"params": key, "dropout": key}


def _assert_idempotent(plan: Any, once: Any) -> None:
    twice = plan.rescale(once)
    for first, second in zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True):
        if np.asarray(first).dtype.kind == "f":
            np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-7)
