"""The plan stays with the variables through everything that a Flax user does to them."""

from __future__ import annotations

import copy
import pathlib
import pickle
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from flax.core import freeze, unfreeze
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import DictKey
from plans import scaled_logits
from trees import inner, variables, whole

from anyinit._apply.variables import Variables, plan_of
from anyinit._plan.plan import Plan

PLAN = scaled_logits()


class Up(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(16, name="up")(x)


def assert_carried(after: Any, before: Variables | None = None) -> None:
    """The same type, plan and tree, and the same values where `before` is given."""
    assert type(after) is Variables
    assert after.plan == PLAN
    assert type(after["params"]) is dict
    if before is not None:
        assert jax.tree.structure(after) == jax.tree.structure(before)
        jax.tree.map(np.testing.assert_array_equal, after, before)


def test_tree_map_and_paths() -> None:
    params = variables()
    assert_carried(jax.tree.map(lambda leaf: leaf, params), params)
    assert jax.tree.map(lambda leaf: leaf, params).plan is params.plan
    for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]:
        assert path[0] == DictKey("params")


def test_inner_tree_is_what_the_model_makes() -> None:
    params = variables()
    assert jax.tree.structure(params["params"]) == jax.tree.structure(inner())
    assert isinstance(params, dict)
    assert params == {"params": params["params"]}


def test_order_of_collections_does_not_matter() -> None:
    state = {"norm": {"mean": jnp.zeros(3)}}
    one = Variables({"params": inner(), "batch_stats": state}, plan=PLAN)
    two = Variables({"batch_stats": state, "params": inner()}, plan=PLAN)
    assert jax.tree.structure(one) == jax.tree.structure(two)


def test_plans_tell_treedefs_apart() -> None:
    other = Variables(whole(), plan=Plan(weights=()))
    assert jax.tree.structure(other) != jax.tree.structure(variables())


def test_jit_as_argument_and_result() -> None:
    traces = []

    @jax.jit
    def step(params: Variables) -> Variables:
        traces.append(params.plan)
        return jax.tree.map(lambda leaf: leaf + leaf, params)

    first = step(variables())
    assert_carried(first)
    # An equal plan that is another object must not compile again.
    step(Variables(whole(), plan=Plan.from_json(PLAN.to_json())))
    step(first)
    assert traces == [PLAN]


def test_grad_and_eval_shape() -> None:
    def loss(params: Variables) -> jax.Array:
        return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)), jnp.zeros(()))

    assert_carried(jax.grad(loss)(variables()))
    shapes = jax.eval_shape(lambda: variables())
    assert_carried(shapes)
    assert shapes["params"]["wte"]["embedding"].shape == (40, 16)


def test_device_put_and_sharding() -> None:
    params = variables()
    assert_carried(jax.device_put(params), params)
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    assert_carried(jax.device_put(params, replicated), params)
    shardings = jax.tree.map(lambda _: replicated, params)
    assert_carried(jax.jit(lambda tree: tree, out_shardings=shardings)(params), params)


def test_apply_accepts_them() -> None:
    params = Variables({"params": {"up": inner()["up"]}}, plan=PLAN)
    y, state = Up().apply(params, jnp.ones((2, 16)), mutable=["batch_stats"])
    assert y.shape == (2, 16)
    assert_carried(params | state)


@pytest.mark.standard_promotion
def test_optimizer_updates() -> None:
    params = variables()
    optimizer = optax.adamw(1e-2)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert_carried(optax.apply_updates(params, updates))


@pytest.mark.standard_promotion
@pytest.mark.parametrize("inner_only", [False, True])
def test_train_state(inner_only: bool) -> None:
    params = variables()["params"] if inner_only else variables()
    state = TrainState.create(apply_fn=Up().apply, params=params, tx=optax.adam(1e-2))
    state = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))(state, params)
    assert jax.tree.structure(state.params) == jax.tree.structure(params)
    restored = serialization.from_bytes(state, serialization.to_bytes(state))
    assert jax.tree.structure(restored.params) == jax.tree.structure(params)


def test_flax_serialization() -> None:
    params = variables(batch_stats={"norm": {"mean": jnp.zeros(3)}})
    target = jax.tree.map(jnp.zeros_like, params)
    assert_carried(serialization.from_bytes(target, serialization.to_bytes(params)), params)
    state = serialization.to_state_dict(params)
    assert type(state) is dict
    assert_carried(serialization.from_state_dict(target, state), params)
    del state["params"]["wte"]
    with pytest.raises(ValueError, match="wte"):
        serialization.from_state_dict(target, state)


@pytest.mark.parametrize("checkpointer", [ocp.StandardCheckpointer, ocp.PyTreeCheckpointer])
def test_orbax(checkpointer: Any, tmp_path: pathlib.Path) -> None:
    params = variables()
    with checkpointer() as saver:
        saver.save(tmp_path / "step", params)
        if hasattr(saver, "wait_until_finished"):
            saver.wait_until_finished()
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, params)
        if checkpointer is ocp.StandardCheckpointer:
            restored = saver.restore(tmp_path / "step", shapes)
        else:
            arguments = ocp.checkpoint_utils.construct_restore_args(shapes)
            restored = saver.restore(tmp_path / "step", item=shapes, restore_args=arguments)
    assert_carried(restored, params)


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        Variables.copy,
        lambda params: pickle.loads(pickle.dumps(params)),
        lambda params: params | {},
        lambda params: flax.core.copy(params, {}),
    ],
)
def test_copies_keep_the_plan(copied: Any) -> None:
    params = variables()
    after = copied(params)
    assert after is not params
    assert_carried(after, params)


def test_freeze_and_unfreeze_give_plain_dictionaries() -> None:
    """Flax builds them anew; the error for a missing plan says what to pass."""
    assert type(freeze(variables())) is flax.core.FrozenDict
    assert type(unfreeze(variables())) is dict


def test_plan_of_prefers_the_plan_passed() -> None:
    other = Plan(weights=())
    assert plan_of(variables(), None, "f") == PLAN
    assert plan_of(variables(), other, "f") is other
    assert plan_of(inner(), PLAN, "f") is PLAN


@pytest.mark.parametrize(
    ("params", "name"), [(whole(), "dict"), (freeze(whole()), "FrozenDict"), (None, "NoneType")]
)
def test_without_a_plan_the_error_says_what_to_pass(params: Any, name: str) -> None:
    with pytest.raises(ValueError) as error:
        plan_of(params, None, "optax_labels")
    message = str(error.value)
    assert message.startswith(f"optax_labels: got a {name}, which carries no plan")
    assert "Pass plan=: anyinit.flax.plan(model, x)" in message
    assert "anyinit.Plan.from_json(text)" in message


def test_plan_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"must be an anyinit\.Plan, got str.*Plan\.from_json"):
        plan_of(whole(), PLAN.to_json(), "optax_labels")  # type: ignore[arg-type]
