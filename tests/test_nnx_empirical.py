"""Measuring nnx modules: init with mode="empirical", and measure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from measure import moment, normal, tokens

import anyinit.nnx
from anyinit import UnhealthyError
from anyinit._findings import Kind

WIDTH, VOCAB = 128, 500


class Tied(nnx.Module):
    """A tied readout with a factor that is computed from the signal, batch norm and dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, idx: jax.Array) -> jax.Array:
        x = self.table(idx)
        x = x + self.dropout(self.down(nnx.relu(self.up(self.norm(x)))))
        h = self.last(x)
        return self.table.attend(h) * (3 / jnp.std(x))


def test_factor_computed_from_the_signal() -> None:
    model, idx = Tied(nnx.Rngs(0)), tokens(0, VOCAB)
    before = jax.tree.map(np.asarray, nnx.state(model, nnx.BatchStat))
    count = nnx.state(model, nnx.RngCount)
    count = jax.tree.map(np.asarray, count)
    plan = anyinit.nnx.init(model, idx, mode="empirical")
    # Running averages and random states are as they were.
    for kind, kept in ((nnx.BatchStat, before), (nnx.RngCount, count)):
        now = jax.tree.map(np.asarray, nnx.state(model, kind))
        assert jax.tree.all(jax.tree.map(np.array_equal, kept, now))
    assert moment(model(idx)) == pytest.approx(1, abs=0.05)
    assert "measured on a batch" in str(plan)
    assert {left.path for left in plan.left_alone} >= {"dropout/rngs/count", "norm/mean"}
    check = anyinit.nnx.measure(model, tokens(1, VOCAB), plan=plan)
    check.assert_healthy(tolerance=0.3)


def test_second_call_changes_nothing() -> None:
    model, idx = Tied(nnx.Rngs(0)), tokens(0, VOCAB)
    first = anyinit.nnx.init(model, idx, mode="empirical")
    kernel = np.asarray(model.up.kernel[...])
    second = anyinit.nnx.init(model, idx, mode="empirical")
    assert np.allclose(kernel, model.up.kernel[...], rtol=1e-5)
    for row, again in zip(first.weights, second.weights, strict=True):
        assert again.sigma == pytest.approx(row.sigma, rel=1e-4)


def test_measure_without_a_plan_compares_with_the_analytic_one() -> None:
    model = nnx.Sequential(
        nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)),
        nnx.relu,
        nnx.Linear(WIDTH, 32, rngs=nnx.Rngs(1)),
    )
    x = normal(0, (64, WIDTH))
    with pytest.raises(UnhealthyError, match="smaller than predicted"):
        # As nnx draws it, ReLU halves the signal.
        anyinit.nnx.measure(model, x).assert_healthy(tolerance=0.3)
    anyinit.nnx.init(model, x)
    anyinit.nnx.measure(model, x).assert_healthy(tolerance=0.3)


def test_refused_arguments() -> None:
    model: Any = nnx.Linear(WIDTH, 32, rngs=nnx.Rngs(0))
    x = normal(0, (8, WIDTH))
    kernel = np.asarray(model.kernel[...])
    with pytest.raises(ValueError, match="holds NaN"):
        anyinit.nnx.init(model, x.at[0, 0].set(jnp.nan), mode="empirical")
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        anyinit.nnx.init(model, jnp.zeros_like(x), mode="empirical")
    with pytest.raises(TypeError, match="without values"):
        anyinit.nnx.init(model, jax.ShapeDtypeStruct(x.shape, x.dtype), mode="empirical")
    with pytest.raises(TypeError, match=r"Expected an instance of flax\.nnx\.Module"):
        anyinit.nnx.measure(lambda rngs: model, x)  # type: ignore[arg-type]
    assert np.array_equal(kernel, model.kernel[...])
    one = anyinit.nnx.init(model, x[:1], mode="empirical")
    assert Kind.ONE_EXAMPLE in {finding.kind for finding in one.findings}
