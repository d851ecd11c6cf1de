"""Models that nobody wrote: whatever is composed, what it computes is as planned."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase
from random_check import NEAR, Examined, examine
from random_models import (
    Architecture,
    Attention,
    Factor,
    Function,
    Gate,
    Linear,
    Norm,
    Recurrent,
    Residual,
    Shared,
)
from random_strategies import architectures

# Hypothesis varies the examples it has from the eleventh on; ten a seed are drawn afresh.
A_SEED = 10
SEEDS_IN_CI, SEEDS = 4, 31

SQUARE_ROOT = 11.313708498984761


def examined(seed: int) -> list[Examined]:
    """Generate, plan and run the models of a seed; nothing may crash or be missed.

    A model that fails is printed by hypothesis as the source that makes it again.
    `random_shrink.py` makes it smaller.
    """
    found: list[Examined] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=A_SEED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(architectures())
    def check(architecture: Architecture) -> None:
        found.append(examine(architecture))

    check()
    return found


def assert_as_planned(found: list[Examined], share: float) -> None:
    """Hold all sites of all models together against what is promised."""
    ratios = [ratio for result in found for ratio in result.ratios]
    off = [(result.architecture, result.failures) for result in found if result.failures]
    assert np.median(ratios) <= 1.06
    assert np.mean([ratio <= NEAR for ratio in ratios]) >= share, off
    beyond = [entry for entry in off if any(text.startswith("logits") for text in entry[1])]
    assert not beyond, beyond


@pytest.mark.parametrize("seed", range(SEEDS_IN_CI))
def test_models_are_as_planned(seed: int) -> None:
    found = examined(seed)
    assert len(found) >= A_SEED - 1
    assert_as_planned(found, share=1.0)


@pytest.mark.slow
def test_hundreds_of_models() -> None:
    found = [result for seed in range(100, 100 + SEEDS) for result in examined(seed)]
    assert len(found) >= 300
    assert_as_planned(found, share=0.99)


# Found by generation and mended, shrunk by hand.
MENDED = {
    "a shared weight times a constant": Architecture(
        steps=(Shared((Residual((Linear("einsum", factor=SQUARE_ROOT),), norm="none"),), 3),),
        normalized=False,
    ),
    "steps of a sequence that are alike": Architecture(
        "sequences",
        (Linear(), Function("cosine"), Linear(), Recurrent("gru")),
        pool="last",
        normalized=False,
    ),
    "the last state of a loop behind layers at every step": Architecture(
        "sequences",
        (Recurrent("minimal"), Gate("silu"), Linear(init="orthogonal", bias="drawn")),
        pool="last",
        normalized=False,
    ),
    "a mean over many positions whose likeness is noise": Architecture(
        "images",
        (Residual((Gate("cosine"), Linear("heads"), Factor(0.5, "negative"))),),
        pool="mean",
        normalized=False,
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name: str) -> None:
    assert not examine(MENDED[name]).failures


# Found by generation and not right yet.
GAPS = {
    "positions that attention has made alike are averaged": Architecture(
        "sequences",
        (
            Attention(by_hand=True, causal=False, scale="none"),
            Norm("layer"),
            Shared((Linear(), Function("selu", 0.5, 0.0, "sum", "erf")), 3),
        ),
        pool="mean",
        normalized=False,
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xfail(reason=name)) for name in GAPS]
)
def test_gaps(name: str) -> None:
    assert not examine(GAPS[name]).failures
