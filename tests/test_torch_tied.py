"""Tied language models in PyTorch: the table is scaled for the output, whatever the spelling."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_models as models
from torch_measure import assert_complete, moment, moments, rms, rows, tokens

import anyinit.torch

WIDTHS = (64, 256)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def table(model: Any) -> Any:
    return model.table if hasattr(model, "table") else model.emb.weight


def check_table(model: Any, c: float, entering: float = 1.0) -> Any:
    """The table's σ is 1/(c√(d·E[h²])), the second moment E[h²] being 1 after a norm."""
    plan = anyinit.torch.init_(model, tokens(0, models.VOCAB, 4, models.LENGTH))
    assert_complete(plan, model)
    wanted = 1 / (c * math.sqrt(model.d * entering))
    assert rms(table(model)) == pytest.approx(wanted, rel=0.01)
    (row,) = [row for row in plan.weights if row.is_tied]
    assert row.m == pytest.approx(1 / c, rel=1e-3)
    return plan


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("read", models.READS)
def test_every_readout(read: str, d: int) -> None:
    check_table(models.Tied(d, read, lookup=models.times(math.sqrt)), 1.0)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("spelling", models.FACTORS)
def test_every_spelling_of_a_factor(spelling: str, place: str, d: int) -> None:
    scale = {place: models.FACTORS[spelling]}
    model = models.Tied(d, factor=d**-0.5, **scale)
    # Dropout keeps the mean, so it is no part of c, but it raises the second moment by 1/0.9.
    entering = 1 / 0.9 if spelling == "dropout" else 1.0
    check_table(model, d**-0.5, entering)


@pytest.mark.parametrize("spelling", models.FACTORS)
def test_every_spelling_in_evaluation_mode(spelling: str) -> None:
    check_table(models.Tied(64, after=models.FACTORS[spelling], factor=0.25).eval(), 0.25)


@pytest.mark.parametrize("d", WIDTHS)
def test_factor_read_off_the_width(d: int) -> None:
    check_table(models.Tied(d, before=models.by_width), d**-0.5)


@pytest.mark.parametrize("d", WIDTHS)
def test_logits_scaled_in_place(d: int) -> None:
    check_table(models.Tied(d, after=models.in_place), d**-0.5)


def test_minicpms_two_factors() -> None:
    d = 256
    lookup, logits = (lambda d: 12.0), (lambda d: 1 / 9)
    plan = check_table(
        models.Tied(d, lookup=models.times(lookup), after=models.times(logits)), 1 / 9
    )
    (row,) = [row for row in plan.weights if row.is_tied]
    assert row.arrival == pytest.approx((12 * 9) ** 2 / d, rel=0.01)


@pytest.mark.parametrize("d", WIDTHS)
def test_soft_cap_counts_as_one(d: int) -> None:
    check_table(models.Tied(d, after=models.soft_cap), 1.0)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("scheme", models.SCHEMES)
def test_the_pages_model_in_every_scheme(scheme: str, d: int) -> None:
    model = models.LM(d, scheme)
    idx = tokens(0, models.VOCAB, 4, models.LENGTH)
    plan = anyinit.torch.init_(model, idx)
    c = model.out_mult
    if model.tied:
        assert rms(model.E) == pytest.approx(1 / (c * math.sqrt(d)), rel=0.01)
        assert rows(plan)["E"].m == pytest.approx(1 / c)
    else:
        assert rms(model.E) == pytest.approx(1.0, rel=0.01)
        assert rms(model.H) == pytest.approx(d**-0.5, rel=0.01)
    assert rms(model.blocks[0].qkv.weight) == pytest.approx(d**-0.5, rel=0.01)
    assert rows(plan)["blocks.0.qkv.weight"].fan == d


@pytest.mark.parametrize("scheme", ["B", "D", "E"])
def test_logits_of_the_pages_model(scheme: str) -> None:
    found = moments(
        lambda: models.LM(256, scheme), lambda seed: [tokens(seed, models.VOCAB, 8, 32)]
    )
    # With the factor the logit of the token that was looked up adds d/V of its own.
    assert 0.8 <= found[""] <= 1.35


def test_direction_of_the_tie_makes_no_difference() -> None:
    losses, sigmas = [], []
    for read in ("linear", "reversed"):
        torch.manual_seed(0)
        model = models.Tied(128, read)
        idx = tokens(1, models.VOCAB, 8, 32)
        before = loss_of(model, idx)
        anyinit.torch.init_(model, idx)
        sigmas.append(rms(model.emb.weight))
        losses.append((before, loss_of(model, tokens(2, models.VOCAB, 8, 32))))
    assert losses[0][0] > 3 * losses[1][0]
    assert sigmas[0] == pytest.approx(sigmas[1], rel=1e-5)
    assert losses[0][1] == pytest.approx(losses[1][1], rel=0.02)
    assert losses[0][1] < math.log(models.VOCAB) + 1.5


def loss_of(model: Any, idx: Any) -> float:
    with torch.no_grad():
        logits = model(idx)
    target = tokens(99, models.VOCAB, *idx.shape)
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()))


def test_logits_in_training_mode() -> None:
    model = models.Tied(128, before=lambda model, x: model.drop(x))
    check_table(model, 1.0, 1 / 0.9)
    with torch.no_grad():
        logits = model(tokens(1, models.VOCAB, 8, 32))
    assert 0.8 <= moment(logits) <= 1.35
