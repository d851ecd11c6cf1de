"""The figure of a plan: what it shows of streams, branches and sites, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from measure import normal, tokens
from models import ResidualMLP, TiedLM

import anyinit
from anyinit import Plan

pytest.importorskip("matplotlib")

MODEL = ResidualMLP(128, 4)


def x(seed: int = 0) -> jax.Array:
    return normal(seed, (32, 128))


def drawn(figure: Any, label: str) -> np.ndarray:
    """Ordinates of what has a label."""
    (axes,) = figure.axes
    handles, labels = axes.get_legend_handles_labels()
    (handle,) = [h for h, found in zip(handles, labels, strict=True) if found == label]
    line = handle[0] if hasattr(handle, "has_yerr") else handle
    return np.asarray(line.get_ydata(), float)


def labels(figure: Any) -> set[str]:
    return set(figure.axes[0].get_legend_handles_labels()[1])


def test_streams_and_branches_are_apart() -> None:
    plan = anyinit.flax.plan(MODEL, x())
    figure = plan.plot()
    stream = drawn(figure, "residual stream, predicted")
    np.testing.assert_allclose(stream, 1 + np.arange(1, 5) / 4, rtol=0.05)
    np.testing.assert_allclose(drawn(figure, "branch, as it is added, predicted"), 1 / 4, rtol=0.01)
    assert drawn(figure, "output, predicted") == pytest.approx([1.0], rel=1e-3)
    assert not any("measured" in label for label in labels(figure))


def test_a_measurement_is_drawn_beside_the_prediction() -> None:
    params = anyinit.flax.init(MODEL, jax.random.key(0), x())
    check = anyinit.flax.measure(MODEL, params, x())
    figure = params.plan.plot(check)
    predicted = drawn(figure, "residual stream, predicted")
    measured = drawn(figure, "residual stream, measured")
    assert len(predicted) == len(measured) == 4
    np.testing.assert_allclose(measured, predicted, rtol=0.4)
    assert not np.allclose(measured, predicted, rtol=1e-6)


def test_an_empirical_plan_shows_what_it_has_measured() -> None:
    params = anyinit.flax.init(MODEL, jax.random.key(0), x(), mode="empirical")
    assert "residual stream, measured" in labels(params.plan.plot())


def test_bounds_are_marked() -> None:
    model = TiedLM(64, blocks=1, vocab=200)
    figure = anyinit.flax.plan(model, tokens(0, 200, (2, 8))).plot()
    assert "residual stream, predicted, at most" in labels(figure)
    assert "output, predicted" in labels(figure)


def test_figure_is_saved_and_changes_no_global_state(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    anyinit.flax.plan(MODEL, x()).plot().savefig(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert plt.get_fignums() == []


def test_moments_are_kept_in_json() -> None:
    plan = anyinit.flax.plan(MODEL, x())
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.moments == plan.moments
    stream = [row.moment for row in plan.moments if row.place.name == "STREAM"]
    assert len(stream) == 4
    entry = plan.to_dict()["moments"][0]
    assert set(entry) == {"path", "place", "site", "where", "moment", "at_most", "number"}


def test_many_places_are_counted_not_named() -> None:
    deep = anyinit.flax.plan(ResidualMLP(16, 20), normal(0, (4, 16))).plot()
    assert deep.axes[0].get_xlabel() == "place in the model, in the order of computation"
    few = anyinit.flax.plan(MODEL, x()).plot()
    assert "down0/kernel" in {tick.get_text() for tick in few.axes[0].get_xticklabels()}
