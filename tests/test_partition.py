"""Labels, and learning rates by label."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze
from flax.training.train_state import TrainState
from plans import TIED, scaled_logits, weight
from trees import CONTAINERS, inner, variables, whole

from anyinit._apply.partition import optax_labels, optax_partition
from anyinit._apply.variables import Variables
from anyinit._leaf_names import named_leaves
from anyinit._plan.plan import Plan

# optax's Adam mixes dtypes, so nothing here runs under strict promotion but what is ours alone.
pytestmark = pytest.mark.standard_promotion

PLAN = scaled_logits()
M = 4.0  # √16
RATE = 1e-2

EXPECTED = {
    "wte/embedding": "table",
    "wpe/embedding": "rest",
    "up/kernel": "rest",
    "up/bias": "rest",
    "norm/scale": "rest",
}


def named(tree: Any) -> dict[str, Any]:
    return {leaf.name: leaf.value for leaf in named_leaves(tree)[0]}


def labels_of(*rows: Any) -> dict[str, str]:
    labels = optax_labels({row.path: 0.0 for row in rows}, plan=Plan(weights=rows))
    assert isinstance(labels, dict)
    return labels


def one_step(optimizer: optax.GradientTransformation, params: Any, grads: Any = None) -> Any:
    grads = jax.tree.map(jnp.ones_like, params) if grads is None else grads
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return updates


def moves(updates: Any) -> dict[str, float]:
    """How far each leaf moves; every entry of it equally."""
    result = {}
    for name, update in named(updates).items():
        np.testing.assert_allclose(update, np.asarray(update).flat[0], rtol=1e-5)
        result[name] = -float(np.asarray(update).flat[0])
    return result


def assert_rates(updates: Any, rate: float = RATE) -> None:
    for name, moved in moves(updates).items():
        m = M if EXPECTED[name] == "table" else 1.0
        assert moved == pytest.approx(m * rate, rel=1e-4), name


@pytest.mark.parametrize("container", CONTAINERS)
def test_labels_have_the_structure_of_the_parameters(container: str) -> None:
    params = CONTAINERS[container]()
    labels = optax_labels(params, plan=PLAN)
    assert type(labels) is type(params)
    assert named(labels) == EXPECTED
    assert jax.tree.structure(labels) == jax.tree.structure(params)


def test_only_the_tied_table_is_labelled_table() -> None:
    position = weight("wpe", (8, 16), roles=("lookup",), m=4.0)
    head = weight("head", (16, 40), roles=("readout",), m=4.0)
    table = weight("wte", (40, 16), roles=TIED, m=4.0)
    assert labels_of(position, head, table) == {"wpe": "scaled", "head": "scaled", "wte": "table"}


def test_further_values_are_numbered_by_size() -> None:
    rows = [
        weight("a", (2, 2), m=2.0),
        weight("b", (4, 4), m=3.0),
        weight("c", (3, 3), m=2.0 * (1 + 1e-9)),
        weight("d", (8, 8), m=1.0 + 1e-9),
        weight("e", (9, 9), m=0.5),
        weight("t", (2, 2), m=2.0, roles=TIED),
        weight("u", (3, 3), m=3.0, roles=TIED),
    ]
    expected = {
        **{"e": "scaled", "b": "scaled:2", "c": "scaled:3", "a": "scaled:3", "d": "rest"},
        **{"u": "table", "t": "table:2"},
    }
    assert labels_of(*rows) == expected
    assert labels_of(*reversed(rows)) == expected


def test_equal_sizes_are_numbered_by_path() -> None:
    one, two = weight("a", (2, 2), m=3.0), weight("b", (2, 2), m=2.0)
    assert labels_of(one, two) == labels_of(two, one) == {"a": "scaled", "b": "scaled:2"}


def test_other_collections_are_rest() -> None:
    params = variables(batch_stats={"norm": {"mean": jnp.zeros(3)}})
    assert named(optax_labels(params))["batch_stats/norm/mean"] == "rest"
    assert optax_labels(params)["params"]["wte"]["embedding"] == "table"


def test_labels_do_not_look_at_values() -> None:
    shapes = jax.eval_shape(inner)
    assert named(optax_labels(shapes, plan=PLAN)) == EXPECTED


@pytest.mark.parametrize("container", CONTAINERS)
def test_adam_moves_the_table_m_times_as_far(container: str) -> None:
    params = CONTAINERS[container]()
    optimizer = optax_partition(params, optax.adam, plan=PLAN, learning_rate=RATE)
    assert_rates(one_step(optimizer, params))


def test_default_is_adamw() -> None:
    params = variables()
    zero = jax.tree.map(jnp.zeros_like, params)
    assert_rates(one_step(optax_partition(params), zero, jax.tree.map(jnp.ones_like, params)), 1e-3)


def test_one_optimizer_serves_inner_and_whole_trees() -> None:
    for made_from in (variables(), variables()["params"], freeze(whole())):
        optimizer = optax_partition(made_from, optax.adam, plan=PLAN, learning_rate=RATE)
        for params in (variables(), whole(), inner(), freeze(inner())):
            assert_rates(one_step(optimizer, params))


@pytest.mark.parametrize("inner_only", [False, True])
def test_train_state(inner_only: bool) -> None:
    params = variables()["params"] if inner_only else variables()
    optimizer = optax_partition(variables(), optax.adam, learning_rate=RATE)
    state = TrainState.create(apply_fn=lambda: None, params=params, tx=optimizer)
    step = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))
    after = step(state, jax.tree.map(jnp.ones_like, params))
    updates = jax.tree.map(lambda new, old: new - old, after.params, params)
    table, kernel = named(updates)["wte/embedding"], named(updates)["up/kernel"]
    np.testing.assert_allclose(table, -M * RATE, rtol=1e-3)
    np.testing.assert_allclose(kernel, -RATE, rtol=1e-3)


def test_schedule_keeps_m() -> None:
    params = variables()
    schedule = optax.linear_schedule(0.0, RATE, 4)
    optimizer = optax_partition(params, optax.adam, learning_rate=schedule)
    state = optimizer.init(params)
    grads = jax.tree.map(jnp.ones_like, params)
    for count in range(6):
        updates, state = jax.jit(optimizer.update)(grads, state, params)
        assert_rates(updates, float(schedule(count)))


def test_learning_rate_may_be_injected() -> None:
    params = variables()

    def build(learning_rate: Any) -> optax.GradientTransformation:
        return optax_partition(params, optax.adam, learning_rate=learning_rate)

    optimizer = optax.inject_hyperparams(build)(learning_rate=RATE)
    assert_rates(one_step(optimizer, params))


def test_weight_decay_is_multiplied_by_the_rate() -> None:
    params = jax.tree.map(jnp.ones_like, variables())
    optimizer = optax_partition(params, optax.adamw, learning_rate=RATE, weight_decay=0.5)
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert_rates(one_step(optimizer, params, zeros), 0.5 * RATE)


@pytest.mark.parametrize("as_function", [False, True])
def test_decay_mask_is_passed_on(as_function: bool) -> None:
    params = jax.tree.map(jnp.ones_like, variables())

    def matrices(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)

    mask = matrices if as_function else matrices(params)
    optimizer = optax_partition(
        params, optax.adamw, learning_rate=RATE, weight_decay=0.5, mask=mask
    )
    moved = moves(one_step(optimizer, params, jax.tree.map(jnp.zeros_like, params)))
    assert moved["up/bias"] == moved["norm/scale"] == 0
    assert moved["wte/embedding"] == pytest.approx(M * 0.5 * RATE)


def test_clipping_belongs_outside() -> None:
    rows = (weight("table", (1, 1), roles=TIED, m=4.0), weight("kernel", (1, 1)))
    params = Variables(
        {"params": {"table": jnp.zeros((1, 1)), "kernel": jnp.zeros((1, 1))}},
        plan=Plan(weights=rows),
    )
    grads = jax.tree.map(jnp.ones_like, params)
    grads["params"]["table"] = grads["params"]["table"] * 100

    def clipped_inside(learning_rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))

    inside = optax_partition(params, clipped_inside, learning_rate=1.0)
    outside = optax.chain(
        optax.clip_by_global_norm(1.0), optax_partition(params, optax.sgd, learning_rate=1.0)
    )
    got = moves(one_step(inside, params, grads))
    assert (got["table"] / 4, got["kernel"]) == pytest.approx((1, 1), rel=1e-3)
    got = moves(one_step(outside, params, grads))
    assert (got["table"] / 4, got["kernel"]) == pytest.approx((1, 0.01), rel=1e-3)


def test_masked_leaves_are_passed_over() -> None:
    params = inner()
    optimizer = optax_partition(params, optax.adam, plan=PLAN, learning_rate=RATE)
    trained = jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    updates = one_step(optax.masked(optimizer, trained), params)
    assert float(updates["up"]["bias"][0]) == 1.0  # passed through, as optax.masked does
    assert_rates({key: updates[key] for key in ("wte", "wpe")})


def test_frozen_part_of_a_larger_partition() -> None:
    params = variables()
    groups = {
        "train": optax_partition(params, optax.adam, learning_rate=RATE),
        "freeze": optax.set_to_zero(),
    }
    labels = jax.tree.map(lambda leaf: "train" if leaf.ndim > 1 else "freeze", params)
    moved = moves(one_step(optax.partition(groups, labels), params))
    assert moved["wte/embedding"] == pytest.approx(M * RATE, rel=1e-4)
    assert moved["up/bias"] == 0


def test_optimizer_state_can_be_mapped() -> None:
    params = variables()
    optimizer = optax_partition(params, optax.adam, learning_rate=RATE)
    state = optimizer.init(params)
    doubled = optax.tree_utils.tree_map_params(optimizer, lambda leaf: leaf + 1, state)
    assert jax.tree.structure(doubled) == jax.tree.structure(state)


def test_strict_promotion() -> None:
    params = variables()
    with jax.numpy_dtype_promotion("strict"):
        optimizer = optax_partition(
            params, optax.sgd, learning_rate=lambda count: jnp.float32(RATE)
        )
        assert_rates(one_step(optimizer, params))


def test_unknown_parameters_are_refused() -> None:
    other = {k: v for k, v in inner().items() if k != "wpe"} | {"head": {"kernel": jnp.ones(2)}}
    for call in (optax_labels, optax_partition):
        with pytest.raises(ValueError) as error:
            call({"params": other}, plan=PLAN)
        assert "in the parameters, but not in the plan: head/kernel" in str(error.value)
        assert "planned, but not in the parameters: wpe/embedding" in str(error.value)
    optimizer = optax_partition(inner(), plan=PLAN)
    with pytest.raises(ValueError, match="not in the plan: head/kernel"):
        optimizer.init(other)


@pytest.mark.parametrize("call", [optax_labels, optax_partition])
def test_without_a_plan(call: Any) -> None:
    with pytest.raises(ValueError, match=f"{call.__name__}: got a dict.*Pass plan="):
        call(variables()["params"])


def needs_key(learning_rate: float, key: int) -> optax.GradientTransformation:
    raise AssertionError("not called")


@pytest.mark.parametrize(
    ("optimizer", "arguments", "says"),
    [
        (optax.adamw(1e-3), {}, r"such as optax\.adamw, got a GradientTransformation"),
        (1e-3, {}, r"such as optax\.adamw, got a float"),
        (optax.polyak_sgd, {}, r"polyak_sgd cannot be called.*It takes max_learning_rate"),
        (optax.adamw, {"lr": 1e-3}, r"learning_rate= and lr:.*passed as learning_rate="),
        (needs_key, {}, r"needs_key cannot be called.*missing a required argument: 'key'"),
        (optax.adamw, {"learning_rate": "fast"}, "must be a number or a schedule.*got 'fast'"),
        (optax.adamw, {"learning_rate": None}, "must be a number or a schedule.*got None"),
        (optax.adamw, {"learning_rate": [1e-3]}, "must be a number or a schedule"),
    ],
)
def test_wrong_optimizer_calls(optimizer: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says) as error:
        optax_partition(variables(), optimizer, **arguments)
    assert str(error.value).startswith("optax_partition: ")


def test_optimizers_of_every_spelling_are_accepted() -> None:
    params = variables()
    bound = functools.partial(optax.lion, weight_decay=0.0)
    rate = jnp.float32(RATE)
    for optimizer in (bound, lambda **arguments: optax.sgd(**arguments), optax.sign_sgd):
        assert_rates(one_step(optax_partition(params, optimizer, learning_rate=rate), params))
