"""What applying a plan does to every kind of leaf, and which parameters it refuses."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import constants, scaled_logits, weight
from trees import CONTAINERS, boxed, inner, variables, whole

from anyinit._apply.rescale import rescale, scale_to
from anyinit._apply.variables import Variables
from anyinit._plan.plan import Plan

INITIALIZERS = {
    "lecun_normal": nn.initializers.lecun_normal(),
    "truncated_normal": nn.initializers.truncated_normal(0.3),
    "xavier_uniform": nn.initializers.xavier_uniform(),
    "orthogonal": nn.initializers.orthogonal(),
    "normal": nn.initializers.normal(5.0),
}


def rms(array: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(array, np.float64)))))


def one_leaf(shape: tuple[int, ...], sigma: Any) -> Plan:
    axes = (0,) if isinstance(sigma, tuple) else ()
    return Plan(weights=(weight("kernel", shape, sigma=sigma, layer_axes=axes),))


@pytest.mark.parametrize("init", INITIALIZERS)
def test_rms_is_sigma_whatever_drew_the_leaf(init: str) -> None:
    leaf = INITIALIZERS[init](jax.random.key(0), (64, 48), jnp.float32)
    after = one_leaf((64, 48), 0.125).rescale({"kernel": leaf})["kernel"]
    assert rms(after) == pytest.approx(0.125, rel=1e-5)
    ratio = np.asarray(after) / np.asarray(leaf)
    np.testing.assert_allclose(ratio, ratio.flat[0], rtol=1e-6)
    assert ratio.flat[0] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_leaf_keeps_its_dtype(dtype: str) -> None:
    leaf = jax.random.normal(jax.random.key(0), (64, 48)).astype(dtype)
    after = one_leaf((64, 48), 0.5).rescale({"kernel": leaf})["kernel"]
    assert after.dtype == leaf.dtype
    assert rms(after) == pytest.approx(0.5, rel=1e-3)


def test_float64_is_computed_in_float64() -> None:
    with jax.enable_x64(True):
        leaf = jnp.asarray(np.random.default_rng(0).normal(size=(64, 48)))
        after = scale_to(leaf, 0.5)
        assert after.dtype == jnp.float64
        assert rms(after) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("container", CONTAINERS)
def test_untouched_leaves_are_the_same_objects(container: str) -> None:
    params = CONTAINERS[container]()
    after = scaled_logits().rescale(params)
    assert type(after) is type(params)
    assert jax.tree.structure(after) == jax.tree.structure(params)
    same = [new is old for new, old in zip(*map(jax.tree.leaves, (after, params)), strict=True)]
    # In JAX's order: norm/scale, up/bias, up/kernel, wpe/embedding, wte/embedding (a dataclass:
    # its own order).
    assert sorted(same) == [False, False, False, True, True]


def test_other_collections_are_the_same_objects() -> None:
    params = variables(batch_stats={"norm": {"mean": jnp.ones(3)}}, cache={"index": jnp.int32(0)})
    after = scaled_logits().rescale(params)
    assert after["batch_stats"]["norm"]["mean"] is params["batch_stats"]["norm"]["mean"]
    assert after["cache"]["index"] is params["cache"]["index"]


def test_planned_leaf_of_another_collection_is_scaled() -> None:
    plan = Plan(weights=(weight("frozen/table", (4, 4), sigma=0.5),))
    params = {"params": {}, "frozen": {"table": jnp.ones((4, 4))}}
    np.testing.assert_allclose(plan.rescale(params)["frozen"]["table"], 0.5)


def test_module_called_params_keeps_its_name() -> None:
    plan = Plan(weights=(weight("params/kernel", (4, 4), sigma=0.5),))
    np.testing.assert_allclose(
        plan.rescale({"params": {"kernel": jnp.ones((4, 4))}})["params"]["kernel"], 0.5
    )
    after = plan.rescale({"params": {"params": {"kernel": jnp.ones((4, 4))}}})
    np.testing.assert_allclose(after["params"]["params"]["kernel"], 0.5)


def test_parameter_called_value_keeps_its_name() -> None:
    plan = Plan(weights=(weight("head/value", (4, 4), sigma=0.5),))
    params = {"head": {"value": nn.Partitioned(jnp.ones((4, 4)), names=(None, None))}}
    np.testing.assert_allclose(plan.rescale(params)["head"]["value"].value, 0.5)


def test_aliases_name_the_same_weight() -> None:
    plan = Plan(weights=(weight("wte", (4, 4), sigma=0.5, aliases=("head",)),))
    np.testing.assert_allclose(plan.rescale({"head": jnp.ones((4, 4))})["head"], 0.5)


def test_zero_rows_stay_zero_and_do_not_count() -> None:
    leaf = jax.random.normal(jax.random.key(0), (50, 16)).at[40:].set(0.0)
    after = scale_to(leaf, 0.25)
    assert not np.any(after[40:])
    assert rms(after[:40]) == pytest.approx(0.25, rel=1e-5)


def test_zeros_of_a_vector_count() -> None:
    after = scale_to(jnp.array([1.0, 0.0, 0.0, 0.0]), 1.0)
    assert rms(after) == pytest.approx(1.0, rel=1e-6)


def test_stacked_leaf_gets_one_number_a_layer() -> None:
    sigmas = (0.5, 0.25, 0.125)
    leaf = jax.random.normal(jax.random.key(0), (3, 20, 16)).at[1, 5:].set(0.0)
    after = one_leaf((3, 20, 16), sigmas).rescale({"kernel": leaf})["kernel"]
    assert rms(after[0]) == pytest.approx(0.5, rel=1e-5)
    assert rms(after[1, :5]) == pytest.approx(0.25, rel=1e-5)
    assert rms(after[2]) == pytest.approx(0.125, rel=1e-5)


def test_layers_may_lie_along_any_axes() -> None:
    leaf = jax.random.normal(jax.random.key(0), (20, 3, 16, 2))
    sigmas = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    after = scale_to(leaf, sigmas, layer_axes=(3, 1))
    found = [rms(after[:, inner, :, outer]) for outer in range(2) for inner in range(3)]
    np.testing.assert_allclose(found, sigmas, rtol=1e-5)


@pytest.mark.parametrize("sigma", [0.5, (0.5, 0.5)])
def test_zero_leaf_stays_zero_with_finite_gradients(sigma: Any) -> None:
    zeros = jnp.zeros((2, 3, 4))
    axes = (0,) if isinstance(sigma, tuple) else ()
    assert not np.any(scale_to(zeros, sigma, axes))
    gradient = jax.grad(lambda leaf: jnp.sum(scale_to(leaf, sigma, axes)))(zeros)
    assert np.all(np.isfinite(gradient))


def test_gradient_is_that_of_the_formula() -> None:
    leaf = jax.random.normal(jax.random.key(0), (3, 4))
    direction = jax.random.normal(jax.random.key(1), (3, 4))

    def formula(x: jax.Array) -> jax.Array:
        return jnp.sum(direction * x * (0.5 / jnp.sqrt(jnp.mean(x**2))))

    gradient = jax.grad(lambda x: jnp.sum(direction * scale_to(x, 0.5)))(leaf)
    np.testing.assert_allclose(gradient, jax.grad(formula)(leaf), rtol=1e-4, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(exponent=st.floats(-35, 37))
def test_scale_of_the_values_does_not_matter(exponent: float) -> None:
    leaf = np.random.default_rng(0).uniform(0.5, 1, (8, 8)) * 10.0**exponent
    assert rms(scale_to(jnp.asarray(leaf, jnp.float32), 0.5)) == pytest.approx(0.5, rel=1e-5)


def test_large_table_loses_no_digits() -> None:
    leaf = jnp.full((50_000, 512), 3.0)
    assert rms(scale_to(leaf, 1.0)[:10]) == pytest.approx(1.0, rel=1e-5)


def test_rescale_is_idempotent() -> None:
    plan = scaled_logits()
    once = plan.rescale(inner())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), plan.rescale(once), once)


def test_jit_and_eval_shape() -> None:
    plan, params = scaled_logits(), variables()
    jitted = jax.jit(plan.rescale)(params)
    assert jitted.plan == plan
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6), jitted, plan.rescale(params)
    )
    shapes = jax.eval_shape(plan.rescale, params)
    assert jax.tree.structure(shapes) == jax.tree.structure(params)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    partial = jax.jit(rescale, static_argnums=0)
    assert jax.tree.structure(partial(plan, params)) == jax.tree.structure(params)


def test_numpy_parameters_are_accepted() -> None:
    params = jax.tree.map(np.asarray, inner())
    after = scaled_logits().rescale(params)
    assert rms(after["wte"]["embedding"]) == pytest.approx(1.0, rel=1e-5)
    assert after["norm"]["scale"] is params["norm"]["scale"]


def test_variables_carry_the_plan_that_was_applied() -> None:
    old = Variables(whole(), plan=Plan(weights=()))
    assert scaled_logits().rescale(old).plan == scaled_logits()


def test_boxed_leaves_keep_their_names() -> None:
    after = scaled_logits().rescale(boxed())
    assert after["wte"]["embedding"].names == (None, None)


def test_parameters_of_another_model_are_refused() -> None:
    other = inner()
    del other["wpe"]
    other["wte"]["embedding"] = jnp.ones((50, 16))
    other["extra"] = {"kernel": jnp.ones((2, 2))}
    before = pickle.dumps(jax.tree.map(np.asarray, other))
    with pytest.raises(ValueError) as error:
        scaled_logits().rescale({"params": other})
    message = str(error.value)
    assert "do not belong to this plan; nothing was changed" in message
    assert "planned, but not in the parameters: wpe/embedding" in message
    assert "in the parameters, but not in the plan: extra/kernel" in message
    assert "wte/embedding is (50, 16), planned as (40, 16)" in message
    assert pickle.dumps(jax.tree.map(np.asarray, other)) == before


def test_a_subset_and_a_superset_are_refused() -> None:
    params = inner()
    with pytest.raises(ValueError, match=r"not in the parameters: wpe/embedding"):
        scaled_logits().rescale({k: v for k, v in params.items() if k != "wpe"})
    with pytest.raises(ValueError, match=r"not in the plan: head/kernel"):
        scaled_logits().rescale(params | {"head": {"kernel": jnp.ones((2, 2))}})


def test_quantised_leaf_is_refused() -> None:
    params = inner()
    params["up"]["kernel"] = jnp.ones((16, 16), jnp.int8)
    with pytest.raises(ValueError, match="up/kernel is int8, planned as float32"):
        scaled_logits().rescale(params)


def test_long_lists_are_cut() -> None:
    plan = Plan(weights=tuple(weight(f"h_{i}/kernel", (2, 2)) for i in range(12)))
    with pytest.raises(ValueError, match="h_4/kernel and 7 more"):
        plan.rescale({})


def test_left_alone_leaves_may_be_absent() -> None:
    plan = Plan(weights=(weight("kernel", (2, 2)),), left_alone=constants("bias"))
    assert set(plan.rescale({"kernel": jnp.ones((2, 2))})) == {"kernel"}
