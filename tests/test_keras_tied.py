"""Tied Keras language models: the table is scaled for the output, whatever the spelling."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import keras_models as models
from keras_measure import assert_complete, moment_of_others, rms, rows

import anyinit.keras

WIDTHS = (64, 256)

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def check(model: keras.Model, d: int, c: float, m: float | None = None) -> None:
    """σ is 1/(c√d) after a norm, the rate's multiple 1/c, and the logits come out at 1."""
    plan = anyinit.keras.init(model, models.tokens(0))
    assert_complete(plan, model)
    (path,) = [row.path for row in plan.weights if row.is_tied]
    assert rows(plan)[path].m == pytest.approx(1 / c, rel=1e-3)
    (table,) = [v for v in model.variables if v.path == path]
    assert rms(table) == pytest.approx(1 / (c * d**0.5), rel=0.01)
    idx = models.tokens(1)
    assert 0.9 <= moment_of_others(model(idx), idx) <= 1.1


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("spelling", models.FACTORS)
def test_every_spelling_of_a_factor(spelling: str, place: str, d: int) -> None:
    check(models.tied(d, models.FACTORS[spelling], place), d, d**-0.5)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("make", [models.Subclassed, models.custom_head])
def test_subclassed_models_and_custom_layers(make: type, d: int) -> None:
    check(make(d), d, d**-0.5)


@pytest.mark.parametrize("d", WIDTHS)
def test_without_a_factor(d: int) -> None:
    check(models.tied(d), d, 1.0)


def test_reverse_dtype() -> None:
    check(models.tied(64, models.FACTORS["division"], reverse_dtype="float16"), 64, 1 / 8)


def test_soft_cap_counts_as_one() -> None:
    check(models.tied(64, logit_soft_cap=30.0), 64, 1.0)
    check(models.tied(64, models.FACTORS["rescaling"], "before", logit_soft_cap=30.0), 64, 1 / 8)


def test_untied_tables_are_two_weights() -> None:
    model = models.tied(64, models.FACTORS["number_right"], tie_weights=False)
    plan = anyinit.keras.init(model)
    assert_complete(plan, model)
    head = rows(plan)["table/reverse_embeddings"]
    assert (head.sigma, head.m) == (pytest.approx(1, rel=0.01), pytest.approx(8, rel=1e-3))
    assert rows(plan)["table/embeddings"].roles == ("lookup",)
    idx = models.tokens(1)
    assert 0.9 <= moment_of_others(model(idx), idx) <= 1.1


def test_two_lookups_and_one_readout_of_a_table() -> None:
    model = models.two_inputs()
    plan = anyinit.keras.init(model)
    assert_complete(plan, model)
    assert [row.path for row in plan.weights if row.is_tied] == ["table/embeddings"]
    idx = models.tokens(1)
    assert 0.85 <= moment_of_others(model([models.tokens(2), idx]), idx) <= 1.15


def test_default_initializer_is_not_what_decides() -> None:
    # Keras draws uniformly from ±0.05 at every width.
    for d in (16, 1200):
        row = rows(anyinit.keras.plan(models.tied(d)))["table/embeddings"]
        assert row.std_before == pytest.approx(0.05 / 3**0.5, rel=0.02)
        assert row.sigma == pytest.approx(d**-0.5, rel=0.02)
