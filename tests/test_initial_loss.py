"""The first loss: as the page measured it, and as the plan expects it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from measure import initialized, tokens
from models import LENGTH, VOCAB, FusedBlock, TiedLM
from passes import MAIN

IDX = jnp.zeros((8, LENGTH), jnp.int32)
# Wikitext-2 in Pythia's tokens.
WIKITEXT = 33_527


def first_loss(model: TiedLM, variables: Any, seed: int, vocab: int) -> float:
    idx = tokens(seed, vocab, (4, 65))
    logits = jax.jit(model.apply)(variables, idx[:, :-1])
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, idx[:, 1:]).mean())


@pytest.mark.parametrize(("name", "expected"), [("C", 11.2), ("D", 11.2), ("F", 10.8), ("E", 10.9)])
def test_first_loss_at_the_vocabulary_of_the_page(name: str, expected: float) -> None:
    model = TiedLM(128, 4, WIKITEXT, block=FusedBlock, **MAIN[name].fields)
    _, variables = initialized(model, 0, jnp.zeros((4, 64), jnp.int32))
    assert first_loss(model, variables, 1, WIKITEXT) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("blocks", [0, 4])
@pytest.mark.parametrize("name", ["C", "D", "F", "D_untied", "E"])
def test_first_loss_as_expected(name: str, blocks: int) -> None:
    fields = MAIN["E"].fields | MAIN["D"].fields if name == "D_untied" else MAIN[name].fields
    model = TiedLM(256, blocks, **fields)
    plan, variables = initialized(model, 0, IDX)
    measured = first_loss(model, variables, 1, VOCAB)
    assert measured == pytest.approx(plan.expected_loss, abs=0.15, rel=0.02)
