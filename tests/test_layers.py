"""Every kind of layer: its pre-activations have second moment 1 when the model is run."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from layers import IMAGES, NONLINEARITIES, OUT, VECTORS
from measure import initialized, keys, moment, moments, normal, only_row, rows, run, tokens
from models import Net

import anyinit.flax

SEEDS = 3
# Their outputs vary too much from example to example to be cubed twice.
HEAVY = ("relu_cubed", "polynomial")
# What arrives at the site only together with another term.
SHARED = {"half0": 0.5, "half1": 0.5, "thrice": 1 / 9}


def vectors(seed: int) -> tuple[jax.Array]:
    return (normal(seed, (64, 256)),)


def images(seed: int) -> tuple[jax.Array]:
    return (normal(seed, (8, 12, 12, 16)),)


def assert_ones(measured: dict[str, float], tolerance: float = 0.15) -> None:
    assert len(measured) > 1
    wrong = {
        path: value
        for path, value in measured.items()
        if abs(value / SHARED.get(path, 1) - 1) > tolerance
    }
    assert not wrong, wrong


@pytest.mark.parametrize("name", list(VECTORS))
def test_pre_activations(name: str) -> None:
    # Narrow layers without a norm scatter: each multiplies the signal by 1 ± √(5 / width).
    seeds = 24 if name == "products_of_every_spelling" else SEEDS
    assert_ones(moments(Net(VECTORS[name]), seeds, vectors))


@pytest.mark.parametrize("name", list(IMAGES))
def test_pre_activations_of_convolutions(name: str) -> None:
    assert_ones(moments(Net(IMAGES[name]), SEEDS, images))


@pytest.mark.parametrize("name", list(NONLINEARITIES))
def test_pre_activations_before_and_after_a_nonlinearity(name: str) -> None:
    f = NONLINEARITIES[name]

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = f(nn.Dense(512, name="first")(x))
        h = nn.Dense(512, name="second")(h)
        return h if name in HEAVY else nn.Dense(OUT, name="last")(f(h))

    assert_ones(moments(Net(body), SEEDS, vectors))


@pytest.mark.parametrize(
    ("groups", "kernel", "fan"), [(1, (3, 3), 144), (4, (3, 3), 36), (16, (5, 3), 15)]
)
def test_fan_of_a_convolution(groups: int, kernel: tuple[int, int], fan: int) -> None:
    layer = nn.Conv(32, kernel, feature_group_count=groups, padding="VALID")
    row = only_row(anyinit.flax.plan(layer, *images(0)), "kernel")
    assert row.fan == fan
    assert row.sigma == pytest.approx(fan**-0.5, rel=0.01)


@pytest.mark.parametrize("options", [{"strides": 2}, {"kernel_dilation": 2}], ids=str)
def test_strides_and_dilation_do_not_change_the_fan(options: dict[str, Any]) -> None:
    layer = nn.Conv(32, (3, 3), padding="VALID", **options)
    assert only_row(anyinit.flax.plan(layer, *images(0)), "kernel").fan == 9 * 16


def test_lookup_before_a_dense_layer() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(1000, 128)(idx)
        net.sow("intermediates", "arrival", x)
        return nn.Dense(OUT)(nn.relu(nn.Dense(256)(x)))

    assert_ones(moments(Net(body), SEEDS, lambda seed: (tokens(seed, 1000),)))


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no_biases"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no_norm"])
def test_attention(bias: bool, norm: bool) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm()(3 * x) if norm else x
        mixed = nn.MultiHeadDotProductAttention(8, use_bias=bias, name="attention")(x)
        return nn.Dense(OUT, name="head")(mixed)

    measured = moments(Net(body), SEEDS, lambda seed: (normal(seed, (8, 16, 256)),))
    for name in ("query", "key", "value"):
        assert measured[f"attention/{name}"] == pytest.approx(1, abs=0.1)
    # Behind an average over tokens: bounded from above, and above what 16 tokens average to.
    for name in ("attention/out", "head", "output"):
        assert 0.5 / 16 < measured[name] < 1.1


def test_attention_across_two_inputs() -> None:
    def body(net: nn.Module, x: jax.Array, memory: jax.Array) -> jax.Array:
        return nn.MultiHeadDotProductAttention(8, name="attention")(x, memory)

    measured = moments(
        Net(body), SEEDS, lambda seed: (normal(seed, (8, 4, 128)), normal(seed, (8, 9, 192)))
    )
    for name in ("query", "key", "value"):
        assert measured[f"attention/{name}"] == pytest.approx(1, abs=0.15)
    assert measured["output"] < 1.1


def test_attention_with_dropout_while_training() -> None:
    def body(net: nn.Module, x: jax.Array, train: bool) -> jax.Array:
        attention = nn.MultiHeadDotProductAttention(4, dropout_rate=0.3, name="attention")
        h = x + attention(nn.LayerNorm()(x), deterministic=not train)
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(h))

    measured = moments(Net(body), SEEDS, lambda seed: (normal(seed, (8, 16, 128)),), train=True)
    for name in ("attention/query", "attention/key", "attention/value", "head", "output"):
        assert measured[name] == pytest.approx(1, abs=0.15)


def test_query_and_key_norm() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.MultiHeadDotProductAttention(4, normalize_qk=True, name="attention")(x)

    measured = moments(Net(body), SEEDS, lambda seed: (normal(seed, (8, 16, 128)),))
    for name in ("query", "key", "value"):
        assert measured[f"attention/{name}"] == pytest.approx(1, abs=0.15)


def test_mean_pooling() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.relu(nn.Dense(256, name="first")(x)).mean(axis=1)
        return nn.Dense(OUT, name="last")(h)

    plan, variables = initialized(Net(body), 0, jnp.zeros((16, 8, 128)))
    # E[relu(z)]² + (E[relu(z)²] − E[relu(z)]²) / 8
    mean = 1 / (2 * jnp.pi)
    assert only_row(plan, "last").moment_in == pytest.approx(mean + (0.5 - mean) / 8, rel=0.05)
    output, _ = run(Net(body), variables, normal(1, (64, 8, 128)))
    assert moment(output) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_second_moment_of_the_input(scale: float) -> None:
    model = Net(VECTORS["dense"])
    variables = anyinit.flax.init(model, keys(0), *vectors(0), input_moment=scale**2)
    _, captured = run(model, variables, scale * normal(5, (64, 256)))
    assert moment(captured["Dense_0"]) == pytest.approx(1, abs=0.1)


def test_float_input_counts_as_unit_normal_whatever_its_values() -> None:
    model = Net(VECTORS["dense"])
    assert anyinit.flax.plan(model, 100 * vectors(0)[0]) == anyinit.flax.plan(model, *vectors(1))


def test_rows_come_in_the_order_of_use() -> None:
    plan = anyinit.flax.plan(Net(VECTORS["sequential"]), *vectors(0))
    assert [row.path.split("/")[-2] for row in plan.weights] == ["Dense_0", "Dense_1", "Dense_2"]


def test_row_names_its_site_and_the_models_line() -> None:
    planned = rows(anyinit.flax.plan(Net(VECTORS["dense"]), *vectors(0)))
    # Python makes the outer of two nested calls first.
    assert planned["Dense_1/kernel"].site == "nonlinearity"
    assert planned["Dense_0/kernel"].site == "output"
    assert all(row.where.startswith("layers.py:") for row in planned.values())
