"""The scale of a tied table, its rate and what its lookup delivers, in every forward pass."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import flat, initialized, moment, only_row, others_moment, own_logits, rms, run, tokens
from models import LENGTH, VOCAB, TiedLM
from passes import INITS, MAIN, PASSES, Pass

import anyinit.flax

WIDTHS = (64, 256, 512)
SHAPE = jax.ShapeDtypeStruct((8, LENGTH), jnp.int32)
SHAPE_ZEROS = jnp.zeros((8, LENGTH), jnp.int32)
TABLES = {"take": "table", "index": "table", "one_hot": "table"}


def grid(passes: dict[str, Pass], widths: tuple[int, ...], inits: tuple[str, ...], *blocks: int):
    """Test parameters of every combination."""
    # Flax's bfloat16 layers mix dtypes.
    half = pytest.mark.standard_promotion
    return [
        pytest.param(
            passes[name],
            d,
            init,
            count,
            marks=[half] if "dtype" in passes[name].fields else [],
            id=f"{name}-{d}-{init}-{count}blocks",
        )
        for name in passes
        for d in widths
        for init in inits
        for count in blocks
    ]


def build(case: Pass, d: int, init: str, blocks: int) -> TiedLM:
    return TiedLM(d, blocks, embedding_init=INITS[init], **case.fields)


def dtypes(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.dtype, dict(variables["params"]))


def table_path(model: TiedLM) -> str:
    return TABLES.get(model.read, "emb/embedding")


def check_plan(case: Pass, model: TiedLM, plan: Any) -> None:
    """σ within 1% of 1/(c√d), the rate multiplier and the lookup's arrival."""
    d = model.d
    row = only_row(plan, table_path(model))
    if model.read == "untied":
        head = only_row(plan, "head/kernel")
        assert row.sigma == pytest.approx(1, rel=0.01)
        assert head.sigma * d**0.5 == pytest.approx(1, rel=0.01)
        assert row.m == head.m == 1
        assert row.arrival == pytest.approx(1, rel=0.02)
        assert (row.roles, head.roles) == (("lookup",), ("readout",))
        return
    assert row.sigma * d**0.5 == pytest.approx(case.sigma(d), rel=0.01)
    assert row.m == pytest.approx(case.m(d), rel=0.01)
    assert row.arrival == pytest.approx(case.arrival(d), rel=0.02)
    assert row.roles == ("lookup", "readout")
    assert row.fan == d
    assert row.target == pytest.approx(1, rel=0.01)
    if model.positions:
        positions = only_row(plan, "positions")
        assert positions.sigma**2 == pytest.approx(case.arrival(d), rel=0.02)
        assert positions.arrival == pytest.approx(case.arrival(d), rel=0.02)
        assert positions.m == 1


def check_run(case: Pass, model: TiedLM) -> None:
    """Logits and arrival as measured on fresh tokens."""
    plan, variables = initialized(model, 1, jnp.zeros((8, LENGTH), jnp.int32))
    idx = tokens(2, VOCAB)
    logits, captured = run(model, variables, idx)
    logits = case.finish(logits)
    row = only_row(plan, table_path(model))
    table = flat(variables["params"])[table_path(model)]
    half = model.dtype == jnp.bfloat16
    assert rms(table) == pytest.approx(row.sigma, rel=0.004 if half else 0.001)
    assert moment(captured["arrival"]) == pytest.approx(row.arrival, rel=0.05)
    if case.readout and model.blocks:
        inside = idx[:, -logits.shape[1] :]
        assert others_moment(logits, inside) == pytest.approx(1, abs=0.1)
        assert plan.logits_moment == pytest.approx(1, rel=0.03)


@functools.cache
def planned(model: TiedLM) -> Any:
    return anyinit.flax.plan(model, SHAPE)


@pytest.mark.parametrize(("case", "d", "init", "blocks"), grid(PASSES, (64,), ("default",), 0, 4))
def test_scale_of_the_table(case: Pass, d: int, init: str, blocks: int) -> None:
    model = build(case, d, init, blocks)
    check_plan(case, model, planned(model))


@pytest.mark.parametrize(
    ("case", "d", "init", "blocks"), grid(MAIN, (256, 512), ("default",), 0, 4)
)
def test_scale_of_the_table_by_width(case: Pass, d: int, init: str, blocks: int) -> None:
    model = build(case, d, init, blocks)
    check_plan(case, model, planned(model))


@pytest.mark.parametrize(("case", "d", "init", "blocks"), grid(MAIN, (64,), ("unit", "small"), 0))
def test_scale_does_not_depend_on_the_initializer(
    case: Pass, d: int, init: str, blocks: int
) -> None:
    model = build(case, d, init, blocks)
    check_plan(case, model, planned(model))
    reference = planned(build(case, d, "default", blocks))
    path = table_path(model)
    assert only_row(planned(model), path).sigma == pytest.approx(only_row(reference, path).sigma)


@pytest.mark.parametrize(
    ("case", "d", "init", "blocks"),
    grid(MAIN, (64,), ("unit",), 4)
    + grid(MAIN, (512,), ("small",), 4)
    + grid({name: PASSES[name] for name in PASSES if name not in MAIN}, (64,), ("small",), 4),
)
def test_logits_as_measured(case: Pass, d: int, init: str, blocks: int) -> None:
    check_run(case, build(case, d, init, blocks))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "d", "init", "blocks"), grid(PASSES, WIDTHS, tuple(INITS), 0, 4))
def test_every_combination(case: Pass, d: int, init: str, blocks: int) -> None:
    model = build(case, d, init, blocks)
    check_plan(case, model, planned(model))
    check_run(case, model)


@pytest.mark.parametrize("blocks", [0, 4])
@pytest.mark.parametrize("d", [64, 512])
@pytest.mark.parametrize("name", ["C", "D", "twelve_and_ninth"])
def test_own_token_logit_as_predicted(name: str, d: int, blocks: int) -> None:
    model = TiedLM(d, blocks, **PASSES[name].fields)
    plan, variables = initialized(model, 1, SHAPE_ZEROS)
    idx = tokens(2, VOCAB)
    logits, _ = run(model, variables, idx)
    predicted = only_row(plan, "emb/embedding").own_token_logit
    assert np.mean(own_logits(logits, idx)) == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize("name", ["C", "D"])
def test_own_token_logit_is_near_root_d_without_blocks(name: str) -> None:
    row = only_row(planned(TiedLM(256, 0, **PASSES[name].fields)), "emb/embedding")
    assert row.own_token_logit == pytest.approx(16, rel=0.03)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("name", ["F_bfloat16", "D_bfloat16_params"])
def test_dtypes_of_the_tree_stay(name: str) -> None:
    model = TiedLM(64, 2, **PASSES[name].fields)
    before = model.init(jax.random.key(0), SHAPE_ZEROS)
    after = anyinit.flax.init(model, jax.random.key(0), SHAPE_ZEROS)
    assert dtypes(before) == dtypes(after)


def test_a_tied_table_is_one_row() -> None:
    plan = planned(TiedLM(64, 4))
    assert sum("emb" in row.path for row in plan.weights) == 1
