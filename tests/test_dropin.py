"""`anyinit.flax.init` in place of `model.init`, wherever that can be called and its result used."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training.train_state import TrainState
from measure import flat, keys, moment, normal, only_row, rms, tokens
from models import LENGTH, VOCAB, Net, ReluMLP, TiedLM
from passes import ALL_HALF, D

import anyinit.flax

KEY = jax.random.key(0)
IDX = jnp.zeros((8, LENGTH), jnp.int32)
MODEL = TiedLM(64, 2, **D)


class Regularized(nn.Module):
    """Takes a training flag, uses dropout, and keeps its features in a second method."""

    rate: float = 0.5

    def setup(self) -> None:
        self.first = nn.Dense(256)
        self.dropout = nn.Dropout(self.rate)
        self.last = nn.Dense(256)

    def features(self, x: jax.Array) -> jax.Array:
        return nn.relu(self.first(x))

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return self.last(self.dropout(self.features(x), deterministic=not train))


def assert_equal(one: Any, two: Any) -> None:
    one, two = flat(one["params"]), flat(two["params"])
    assert one.keys() == two.keys()
    for path, leaf in one.items():
        # Normal numbers near zero are drawn with an absolute error, which compilers differ in.
        np.testing.assert_allclose(leaf, two[path], rtol=1e-6, atol=1e-7, err_msg=path)


def loss(variables: Any, idx: jax.Array) -> jax.Array:
    logits = MODEL.apply(variables, idx[:, :-1])
    targets = idx[:, 1:]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


@pytest.fixture(scope="module")
def variables() -> Any:
    return anyinit.flax.init(MODEL, KEY, IDX)


def test_is_the_plan_applied_to_what_the_model_draws(variables: Any) -> None:
    assert_equal(variables, anyinit.flax.plan(MODEL, IDX).rescale(MODEL.init(KEY, IDX)))


@pytest.mark.standard_promotion
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_tree_is_the_models_own(half: bool) -> None:
    model = TiedLM(64, 2, **(ALL_HALF if half else {}))
    before, after = model.init(KEY, IDX), anyinit.flax.init(model, KEY, IDX)
    assert type(after["params"]) is type(before["params"])
    assert jax.tree.structure(after["params"]) == jax.tree.structure(before["params"])
    assert jax.tree.leaves_with_path(jax.eval_shape(lambda: after["params"])) == (
        jax.tree.leaves_with_path(jax.eval_shape(lambda: before["params"]))
    )


def test_same_values_up_to_one_positive_factor_a_leaf(variables: Any) -> None:
    before = flat(MODEL.init(KEY, IDX)["params"])
    for path, leaf in flat(variables["params"]).items():
        old, new = np.asarray(before[path], np.float64), np.asarray(leaf, np.float64)
        if np.any(old):
            factor = np.sum(old * new) / np.sum(old * old)
            assert factor > 0
            np.testing.assert_allclose(new, factor * old, rtol=1e-6, err_msg=path)


def test_same_key_same_values_other_key_others(variables: Any) -> None:
    assert_equal(variables, anyinit.flax.init(MODEL, KEY, IDX))
    other = anyinit.flax.init(MODEL, jax.random.key(1), IDX)
    table = "emb/embedding"
    assert not np.allclose(flat(other["params"])[table], flat(variables["params"])[table])


def test_inside_jit(variables: Any) -> None:
    assert_equal(variables, jax.jit(anyinit.flax.init, static_argnums=0)(MODEL, KEY, IDX))
    assert_equal(variables, jax.jit(lambda key, x: anyinit.flax.init(MODEL, key, x))(KEY, IDX))
    assert_equal(variables, jax.jit(lambda key: anyinit.flax.init(MODEL, key, IDX))(KEY))


def test_under_eval_shape(variables: Any) -> None:
    shapes = jax.eval_shape(functools.partial(anyinit.flax.init, MODEL), KEY, IDX)
    assert jax.tree.structure(shapes) == jax.tree.structure(variables)
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), dict(shapes))
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), dict(variables))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(shapes))


def test_under_vmap_over_keys(variables: Any) -> None:
    stacked = jax.vmap(lambda key: anyinit.flax.init(MODEL, key, IDX))(jax.random.split(KEY, 2))
    sigma = only_row(anyinit.flax.plan(MODEL, IDX), "emb").sigma
    for table in flat(stacked["params"])["emb/embedding"]:
        assert rms(table) == pytest.approx(sigma, rel=1e-3)


@pytest.mark.parametrize("key", [jax.random.PRNGKey(0), keys(0)], ids=["old_style", "dict"])
def test_keys_of_every_kind(key: Any) -> None:
    old = flat(MODEL.init(key, IDX)["params"])["emb/embedding"]
    new = flat(anyinit.flax.init(MODEL, key, IDX)["params"])["emb/embedding"]
    np.testing.assert_allclose(new / new[0, 0], old / old[0, 0], rtol=1e-4)


@pytest.mark.parametrize("how", ["position", "keyword"])
@pytest.mark.parametrize("train", [False, True])
def test_training_flag(train: bool, how: str) -> None:
    model, x = Regularized(), jnp.zeros((4, 128))
    args, kwargs = ((x, train), {}) if how == "position" else ((x,), {"train": train})
    params = flat(anyinit.flax.init(model, keys(0), *args, **kwargs)["params"])
    # ReLU keeps half of 1, dropout at 1/2 doubles it.
    assert rms(params["last/kernel"]) == pytest.approx(
        (256 * (1 if train else 0.5)) ** -0.5, rel=0.03
    )
    planned = anyinit.flax.plan(model, *args, rngs={"dropout": KEY}, **kwargs)
    assert only_row(planned, "last").sigma == pytest.approx(rms(params["last/kernel"]), rel=1e-3)


def test_plan_needs_no_keys() -> None:
    shape = jax.ShapeDtypeStruct((4, 128), jnp.float32)
    planned = anyinit.flax.plan(Regularized(), shape, train=True)
    assert only_row(planned, "last").sigma == pytest.approx(256**-0.5, rel=0.03)


def test_method_by_name_and_by_function() -> None:
    x = jnp.zeros((4, 128))
    for method in ("features", Regularized.features):
        variables = anyinit.flax.init(Regularized(), KEY, x, method=method)
        assert set(flat(variables["params"])) == {"first/kernel", "first/bias"}
        assert rms(variables["params"]["first"]["kernel"]) == pytest.approx(128**-0.5, rel=0.01)


def test_mutable_collections() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        count = net.variable("statistics", "count", lambda: jnp.zeros(()))
        count.value = count.value + 1
        return nn.Dense(128)(x)

    x = jnp.zeros((4, 128))
    variables = anyinit.flax.init(Net(body), KEY, x, mutable=["params", "statistics"])
    expected = Net(body).init(KEY, x, mutable=["params", "statistics"])
    assert jax.tree.structure(dict(variables)) == jax.tree.structure(expected)
    assert variables["statistics"] == expected["statistics"]


def two_inputs(net: nn.Module, *args: Any, **kwargs: Any) -> jax.Array:
    """A dict, a tuple, and arguments by position or by name; 2 x 128 features in all."""
    leaves = jax.tree.leaves((args, kwargs))
    left, right = (leaf for leaf in leaves)
    h = nn.Dense(256, name="left")(left) + nn.Dense(256, name="right")(right)
    return nn.Dense(256, name="last")(nn.relu(h))


LEFT, RIGHT = normal(1, (64, 128)), normal(2, (64, 96))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((LEFT, RIGHT), {}),
        (((LEFT, RIGHT),), {}),
        (([LEFT, RIGHT],), {}),
        (({"a": LEFT, "b": RIGHT},), {}),
        ((LEFT,), {"b": RIGHT}),
        ((), {"a": LEFT, "b": RIGHT}),
        (({"a": (LEFT, {"b": RIGHT})},), {}),
    ],
    ids=["two", "tuple", "list", "dict", "mixed", "keywords", "nested"],
)
def test_inputs_of_every_structure(args: Any, kwargs: Any) -> None:
    model = Net(two_inputs)
    variables = anyinit.flax.init(model, KEY, *args, **kwargs)
    params = flat(variables["params"])
    for name, fan in (("left", 128), ("right", 96)):
        # The two share the pre-activation that they are added to.
        assert rms(params[f"{name}/kernel"]) == pytest.approx((2 * fan) ** -0.5, rel=0.01)
    assert moment(model.apply(variables, *args, **kwargs)) == pytest.approx(1, abs=0.15)


def test_inputs_that_are_no_arrays_are_constants() -> None:
    def body(net: nn.Module, x: jax.Array, scale: float, kind: str, more: Any = None) -> jax.Array:
        assert kind == "dense"
        assert more is None
        return nn.Dense(128)(x) / scale

    x = jnp.zeros((4, 64))
    planned = anyinit.flax.plan(Net(body), x, 4.0, kind="dense")
    assert only_row(planned, "kernel").c == pytest.approx(1 / 4)
    variables = anyinit.flax.init(Net(body), KEY, x, 4.0, "dense", more=None)
    assert rms(flat(variables["params"])["Dense_0/kernel"]) == pytest.approx(4 / 8, rel=1e-3)


def test_zeros_and_shapes_will_do() -> None:
    model, x = ReluMLP(128, 4), normal(0, (8, 128))
    planned = anyinit.flax.plan(model, x)
    assert planned == anyinit.flax.plan(model, jnp.zeros_like(x))
    assert planned == anyinit.flax.plan(model, np.zeros(x.shape, np.float32))
    assert planned == anyinit.flax.plan(model, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert_equal(anyinit.flax.init(model, KEY, x), anyinit.flax.init(model, KEY, jnp.zeros_like(x)))


def test_plan_is_hashable_and_comparable() -> None:
    one, two = anyinit.flax.plan(MODEL, IDX), anyinit.flax.plan(MODEL, IDX)
    assert one == two
    assert hash(one) == hash(two)
    assert one != anyinit.flax.plan(TiedLM(64, 2), IDX)


def test_apply_and_grad(variables: Any) -> None:
    idx = tokens(1, VOCAB)
    plain = {"params": variables["params"]}
    np.testing.assert_array_equal(MODEL.apply(variables, idx), MODEL.apply(plain, idx))
    gradient = jax.grad(loss)(variables, idx)
    assert jax.tree.structure(gradient) == jax.tree.structure(variables)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_the_plan_survives_tree_operations(variables: Any) -> None:
    halved = jax.tree.map(lambda leaf: leaf / 2, variables)
    for tree in (halved, jax.device_put(variables), jax.jit(lambda tree: tree)(variables)):
        assert type(tree) is type(variables)
        assert anyinit.optax_labels(tree) == anyinit.optax_labels(variables)
    leaves, structure = jax.tree.flatten(variables)
    assert hash(structure) == hash(jax.tree.structure(halved))
    assert_equal(jax.tree.unflatten(structure, leaves), variables)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("inner", [True, False], ids=["params", "variables"])
def test_train_state(variables: Any, inner: bool) -> None:
    idx = tokens(1, VOCAB)
    params = variables["params"] if inner else variables
    wrap = (lambda tree: {"params": tree}) if inner else (lambda tree: tree)
    state = TrainState.create(apply_fn=MODEL.apply, params=params, tx=optax.adam(1e-3))

    @jax.jit
    def step(state: TrainState) -> tuple[TrainState, jax.Array]:
        value, gradient = jax.value_and_grad(lambda p: loss(wrap(p), idx))(state.params)
        return state.apply_gradients(grads=gradient), value

    losses = []
    for _ in range(3):
        state, value = step(state)
        losses.append(float(value))
    assert losses[2] < losses[0]
    assert jax.tree.structure(state.params) == jax.tree.structure(params)


def test_apply_updates(variables: Any) -> None:
    updates = jax.tree.map(jnp.ones_like, variables)
    moved = optax.apply_updates(variables, updates)
    assert type(moved) is type(variables)
    np.testing.assert_allclose(
        moved["params"]["emb"]["embedding"], variables["params"]["emb"]["embedding"] + 1
    )


@pytest.mark.parametrize("inner", [True, False], ids=["params", "variables"])
def test_orbax(variables: Any, inner: bool, tmp_path: Any) -> None:
    tree = variables["params"] if inner else variables
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", tree)
        checkpointer.wait_until_finished()
        template = jax.tree.map(jnp.zeros_like, tree)
        restored = checkpointer.restore(tmp_path / "checkpoint", template)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, restored, tree)


@pytest.mark.parametrize("inner", [True, False], ids=["params", "variables"])
def test_flax_serialization(variables: Any, inner: bool) -> None:
    tree = variables["params"] if inner else variables
    template = jax.tree.map(jnp.zeros_like, tree)
    restored = flax.serialization.from_bytes(template, flax.serialization.to_bytes(tree))
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, restored, tree)
    state = flax.serialization.from_state_dict(template, flax.serialization.to_state_dict(tree))
    assert jax.tree.structure(state) == jax.tree.structure(tree)


def test_state_dict_is_the_plain_one(variables: Any) -> None:
    state = flax.serialization.to_state_dict(variables)
    plain = flax.serialization.to_state_dict({"params": variables["params"]})
    assert jax.tree.structure(state) == jax.tree.structure(plain)


def test_frozen_dict_params_are_rescaled_as_they_are() -> None:
    from flax.core import FrozenDict, freeze

    plan = anyinit.flax.plan(MODEL, IDX)
    frozen = plan.rescale(freeze(MODEL.init(KEY, IDX)))
    assert isinstance(frozen, FrozenDict)
    assert_equal(frozen, anyinit.flax.init(MODEL, KEY, IDX))


def test_inner_params_are_rescaled_alike() -> None:
    plan, variables = anyinit.flax.plan(MODEL, IDX), MODEL.init(KEY, IDX)
    inner = plan.rescale(variables["params"])
    assert_equal({"params": inner}, plan.rescale(variables))


def test_rescale_inside_jit_and_under_eval_shape() -> None:
    plan, variables = anyinit.flax.plan(MODEL, IDX), MODEL.init(KEY, IDX)
    assert_equal(jax.jit(plan.rescale)(variables), plan.rescale(variables))
    shapes = jax.eval_shape(plan.rescale, variables)
    assert jax.tree.structure(shapes["params"]) == jax.tree.structure(variables["params"])


def test_plan_to_json_and_back() -> None:
    plan = anyinit.flax.plan(MODEL, IDX)
    assert anyinit.Plan.from_json(plan.to_json()) == plan
    assert_equal(
        anyinit.Plan.from_json(plan.to_json()).rescale(MODEL.init(KEY, IDX)),
        plan.rescale(MODEL.init(KEY, IDX)),
    )


def test_bound_configuration_of_jax_is_left_alone() -> None:
    before = dict(jax.config.values)
    anyinit.flax.init(ReluMLP(64, 2), KEY, jnp.zeros((2, 64)))
    assert dict(jax.config.values) == before


def test_a_stream_without_a_key_of_its_own_is_drawn_from_that_of_the_parameters() -> None:
    """As in Flax: a variational model needs no key for its samples."""

    class Variational(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            mean, log = jnp.split(nn.Dense(64)(x), 2, axis=-1)
            noise = jax.random.normal(self.make_rng("sample"), mean.shape)
            return nn.Dense(16)(mean + jnp.exp(log / 2) * noise)

    model, x = Variational(), normal(0, (256, 32))
    variables = anyinit.flax.init(model, KEY, x)
    assert moment(model.apply(variables, x, rngs={"sample": KEY})) == pytest.approx(1, abs=0.3)
    anyinit.flax.measure(model, variables, x).assert_healthy(tolerance=0.5)
