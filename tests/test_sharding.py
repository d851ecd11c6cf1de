"""Initialization on a mesh of eight devices: sharded as asked, the same numbers, never gathered."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import anyinit

VOCAB, D, LAYERS = 4_096, 512, 2
TOKENS = jax.ShapeDtypeStruct((2, 16), jnp.int32)
RULES = (("vocabulary", "model"), ("mlp", "model"), ("embed", None), ("layers", None))


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]), ("model",))


@pytest.fixture(autouse=True)
def partitionable() -> Any:
    with jax.threefry_partitionable(True):
        yield


class Model(nn.Module):
    """A tied model whose kernels carry their partitioning, in any kind of box."""

    box: Callable[..., Any] = nn.with_partitioning
    vocabulary: Any = "model"
    mlp: Any = "model"
    embed: Any = None

    @nn.compact
    def __call__(self, idx: jax.Array) -> jax.Array:
        init = nn.initializers.lecun_normal()
        table = self.box(nn.initializers.normal(0.02), (self.vocabulary, self.embed))
        emb = nn.Embed(VOCAB, D, embedding_init=table, name="emb")
        x = emb(idx)
        h = nn.LayerNorm()(x)
        up = self.box(init, (self.embed, self.mlp))
        h = nn.Dense(4 * D, use_bias=False, kernel_init=up, name="up")(h)
        down = self.box(init, (self.mlp, self.embed))
        x = x + nn.Dense(D, use_bias=False, kernel_init=down, name="down")(nn.gelu(h))
        return emb.attend(nn.LayerNorm()(x))


class Layer(nn.Module):
    """A residual block for `nn.scan`."""

    @nn.compact
    def __call__(self, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        h = nn.relu(nn.Dense(4 * D, use_bias=False, kernel_init=init, name="up")(nn.LayerNorm()(x)))
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("model", None))
        return x + nn.Dense(D, use_bias=False, kernel_init=init, name="down")(h), None


class Scanned(nn.Module):
    """Stacked layers, whose boxes get a layer axis."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        blocks = nn.scan(
            Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: None},
        )
        return blocks(name="blocks")(x, None)[0]


def initialize(model: nn.Module, x: Any) -> Callable[[jax.Array], Any]:
    return lambda rng: anyinit.flax.init(model, rng, jnp.zeros(x.shape, x.dtype))


def plain_box(init: Callable[..., Any], names: Any) -> Callable[..., Any]:
    """No box at all."""
    return init


def assert_equal(sharded: Any, whole: Any) -> None:
    for left, right in zip(jax.tree.leaves(sharded), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-7)


MODELS: dict[str, tuple[nn.Module, jax.ShapeDtypeStruct]] = {
    "two_layers": (Model(), TOKENS),
    "scanned": (Scanned(), jax.ShapeDtypeStruct((2, 4, D), jnp.float32)),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_values_equal_the_unsharded_ones(name: str, mesh: Mesh) -> None:
    model, x = MODELS[name]
    make = initialize(model, x)
    shardings = nn.get_sharding(jax.eval_shape(make, jax.random.key(0)), mesh)
    sharded = jax.jit(make, out_shardings=shardings)(jax.random.key(0))
    assert_equal(sharded, make(jax.random.key(0)))
    for leaf, wanted in zip(jax.tree.leaves(sharded), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)


@pytest.mark.parametrize("name", list(MODELS))
def test_no_leaf_is_gathered(name: str, mesh: Mesh) -> None:
    model, x = MODELS[name]
    make = initialize(model, x)
    shapes = jax.eval_shape(make, jax.random.key(0))
    shardings = nn.get_sharding(shapes, mesh)
    compiled = jax.jit(make, out_shardings=shardings).lower(jax.random.key(0)).compile()
    assert "all-gather" not in compiled.as_text()
    leaves = jax.tree.leaves(shapes)
    # No value of a device's program is larger than its part of the largest leaf.
    listed = re.findall(r"\b[a-z]+[0-9]+\[([0-9,]+)\]", compiled.as_text())
    sizes = [math.prod(map(int, shape.split(","))) for shape in listed]
    assert max(sizes) <= max(leaf.size for leaf in leaves) / 8
    memory = compiled.memory_analysis()
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert memory.output_size_in_bytes < whole / 7


def test_shardings_by_hand(mesh: Mesh) -> None:
    model = Model(box=plain_box)
    make = initialize(model, TOKENS)
    shapes = jax.eval_shape(make, jax.random.key(0))

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        axis = int(np.argmax(leaf.shape))
        spec = P(*[None] * axis, "model") if leaf.ndim > 1 else P()
        return NamedSharding(mesh, spec)

    shardings = jax.tree.map(sharding, shapes)
    compiled = jax.jit(make, out_shardings=shardings).lower(jax.random.key(0)).compile()
    assert "all-gather" not in compiled.as_text()
    assert_equal(compiled(jax.random.key(0)), make(jax.random.key(0)))


def test_rescale_keeps_the_sharding(mesh: Mesh) -> None:
    model = Model(box=plain_box)
    plan = anyinit.flax.plan(model, TOKENS)
    variables = model.init(jax.random.key(0), jnp.zeros(TOKENS.shape, TOKENS.dtype))
    placed = jax.tree.map(
        lambda leaf: jax.device_put(
            leaf, NamedSharding(mesh, P("model") if leaf.ndim > 1 else P())
        ),
        variables,
    )
    assert_equal(plan.rescale(placed), plan.rescale(variables))
    for before, after in zip(
        jax.tree.leaves(placed), jax.tree.leaves(jax.jit(plan.rescale)(placed)), strict=True
    ):
        assert after.sharding.is_equivalent_to(before.sharding, before.ndim)


def test_partitioned_boxes_pass_through() -> None:
    make = initialize(Model(), TOKENS)
    variables = make(jax.random.key(0))
    box = variables["params"]["up"]["kernel"]
    assert isinstance(box, nn.Partitioned)
    assert box.names == (None, "model")
    assert variables.plan.weights and "up/kernel" in variables.plan.known_names


def test_logical_boxes_pass_through(mesh: Mesh) -> None:
    model = Model(nn.with_logical_partitioning, "vocabulary", "mlp", "embed")
    make = initialize(model, TOKENS)
    shapes = jax.eval_shape(make, jax.random.key(0))
    assert isinstance(shapes["params"]["emb"]["embedding"], nn.LogicallyPartitioned)
    logical = nn.get_partition_spec(shapes)
    shardings = nn.logical_to_mesh_sharding(logical, mesh, RULES)
    sharded = jax.jit(make, out_shardings=shardings)(jax.random.key(0))
    table = sharded["params"]["emb"]["embedding"]
    assert isinstance(table, nn.LogicallyPartitioned)
    assert table.names == ("vocabulary", "embed")
    assert table.value.sharding.spec == P("model", None) or table.value.sharding.spec == P("model")
    assert_equal(sharded, make(jax.random.key(0)))


def test_boxed_and_plain_models_have_one_plan() -> None:
    boxed, plain = (
        anyinit.flax.plan(Model(box=b), TOKENS) for b in (nn.with_partitioning, plain_box)
    )
    assert [row.sigma for row in boxed.weights] == [row.sigma for row in plain.weights]
    assert boxed.known_names == plain.known_names


def test_labels_of_boxed_parameters() -> None:
    variables = initialize(Model(), TOKENS)(jax.random.key(0))
    labels = anyinit.optax_labels(variables)
    assert labels["params"]["up"]["kernel"].value == "rest"


def test_sharding_constraints_inside_the_model(mesh: Mesh) -> None:
    class Constrained(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            h = nn.relu(nn.Dense(4 * D)(x))
            h = jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P(None, "model")))
            return nn.Dense(256)(h)

    plan = anyinit.flax.plan(Constrained(), jax.ShapeDtypeStruct((8, D), jnp.float32))
    assert not plan.findings
    assert len(plan.weights) == 2
