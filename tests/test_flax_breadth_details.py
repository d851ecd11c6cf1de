"""What the plan of particular models says, beyond what running them shows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from breadth_models import BATTERY
from measure import keys, rms, rows

import anyinit


def plan_of(name: str) -> anyinit.Plan:
    case = BATTERY[name]
    return anyinit.flax.plan(case.model, *case.inputs(0), **case.options)


def drawn(name: str) -> tuple[anyinit.Plan, Any, Any]:
    """A plan, the variables before it and after."""
    case, plan = BATTERY[name], plan_of(name)
    before = case.model.init(keys(0), *case.inputs(0), **case.options)
    return plan, before["params"], plan.rescale(before)["params"]


def reason(plan: anyinit.Plan, path: str) -> str:
    return next(left.reason.name for left in plan.left_alone if left.path == path)


def test_depth_dependent_scale_is_replaced_layer_by_layer() -> None:
    plan, before, after = drawn("scanned_with_depth_dependent_scale")
    sigma = rows(plan)["down"].sigma
    found = [rms(layer) for layer in after["down"]]
    np.testing.assert_allclose(found, sigma, rtol=1e-4)
    ratios = [
        rms(layer) / rms(old) for layer, old in zip(after["down"], before["down"], strict=True)
    ]
    assert max(ratios) / min(ratios) > 1.8


def test_stacked_leaf_has_a_number_for_each_layer() -> None:
    plan = plan_of("scanned_blocks")
    stacked = [row for row in plan.weights if row.path.startswith("blocks/")]
    assert len(stacked) == 6
    for row in stacked:
        assert len(row.sigma) == row.shape[0] == 4


def test_members_of_an_ensemble_share_one_number() -> None:
    assert all(isinstance(row.sigma, float) for row in plan_of("ensemble_by_vmap").weights)


def test_zero_last_layers_stay_zero_and_the_rest_is_planned() -> None:
    plan, _, after = drawn("zero_last_layers")
    for block in ("block0", "block1"):
        assert np.all(np.asarray(after[block]["down"]["kernel"]) == 0)
        assert reason(plan, f"{block}/down/kernel") == "CONSTANT"
        assert f"{block}/up/kernel" in rows(plan)
        assert f"{block}/attention/value/kernel" in rows(plan)


def test_weight_norm_is_scale_free_and_its_gain_is_listed() -> None:
    plan, before, after = drawn("weight_norm")
    assert reason(plan, "Dense_0/kernel") == "SCALE_FREE"
    assert after["Dense_0"]["kernel"] is not None
    np.testing.assert_array_equal(before["Dense_0"]["kernel"], after["Dense_0"]["kernel"])
    gains = [left.path for left in plan.left_alone if "WeightNorm" in left.path]
    assert gains


def test_positions_do_not_get_the_label_of_the_tied_table() -> None:
    case, plan = BATTERY["positions_of_a_tied_table"], plan_of("positions_of_a_tied_table")
    params = jax.eval_shape(case.model.init, keys(0), *case.inputs(0))["params"]
    labels = anyinit.optax_labels(params, plan=plan)
    assert labels["emb"]["embedding"] == "table"
    assert labels["positions"]["embedding"] == "rest"


@pytest.mark.parametrize("name", ["layer_scale", "rezero"])
def test_small_multipliers_are_never_undone(name: str) -> None:
    plan, _, _ = drawn(name)
    for row in plan.weights:
        if row.path.startswith(("down", "attention")) and "head" not in row.path:
            assert row.sigma <= 1.7 * row.fan**-0.5 * max(row.moment_in, 0.05) ** -0.5


def test_small_multiplier_leaves_the_share_alone() -> None:
    """0.22 is smaller than the share 1/√4 asks for: the branch keeps the model's own multiplier."""
    row = rows(plan_of("granite"))["down0/kernel"]
    assert row.target == pytest.approx(1.0)


def test_block_called_three_times_adds_in_step() -> None:
    assert rows(plan_of("block_three_times"))["down/kernel"].target == pytest.approx(1 / 18)


def test_one_row_for_a_table_of_three_uses() -> None:
    plan = plan_of("three_uses_of_a_table")
    row = rows(plan)["emb/embedding"]
    assert row.roles == ("lookup", "readout")
    assert [row.path for row in plan.weights].count("emb/embedding") == 1


def test_experts_get_the_residual_share_through_the_gate() -> None:
    row = rows(plan_of("soft_mixture"))["down0"]
    assert row.site == "residual stream"
    assert row.target == pytest.approx(1 / 2)


def test_sandwich_norms_are_a_finding() -> None:
    kinds = {finding.kind.name for finding in plan_of("sandwich").findings}
    assert kinds == {"NORM_GAIN_BRANCH"}


def test_state_space_parameters_are_left_alone_with_a_reason() -> None:
    plan = plan_of("state_space")
    assert reason(plan, "a_log0") in ("CONSTANT", "NONLINEAR")
    assert reason(plan, "skip0") == "CONSTANT"


def test_collections_are_no_weights() -> None:
    plan = plan_of("resnet")
    assert all(not row.path.startswith("batch_stats") for row in plan.weights)
    assert any(left.path.startswith("batch_stats/") for left in plan.left_alone)


def test_biases_that_are_drawn_are_listed() -> None:
    plan = plan_of("drawn_biases")
    assert reason(plan, "Dense_0/bias") == "BIAS"
    assert reason(plan, "gain") == "GAIN"
