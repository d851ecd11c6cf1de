"""What stays bit for bit: zeros, biases, gains, constants, and everything at a second call."""

from __future__ import annotations

import fnmatch
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import assert_complete, flat, keys, moments, normal, only_row, rms, rows, tokens
from models import LENGTH, VOCAB, Net, ReluMLP, ResidualMLP, TiedLM
from passes import ALL_HALF, MAIN

import anyinit.flax

IDX = jnp.zeros((8, LENGTH), jnp.int32)
X = jnp.zeros((16, 128))


def before_and_after(model: nn.Module, *args: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    plan = anyinit.flax.plan(model, *args)
    before = model.init(keys(0), *args)
    after = plan.rescale(before)
    assert_complete(plan, after)
    return plan, flat(before["params"]), flat(after["params"])


def assert_same(before: dict[str, Any], after: dict[str, Any], *patterns: str) -> None:
    """Leaves that match a pattern are the same bit for bit, and there are some."""
    for pattern in patterns:
        paths = fnmatch.filter(before, pattern)
        assert paths, pattern
        for path in paths:
            np.testing.assert_array_equal(before[path], after[path], err_msg=path)


def listed(plan: Any) -> dict[str, str]:
    return {left.path: left.reason.name for left in plan.left_alone}


def test_biases_and_gains_of_a_transformer() -> None:
    plan, before, after = before_and_after(TiedLM(64, 2, bias=True), IDX)
    assert_same(before, after, "*/bias", "bias", "*/LayerNorm_*/scale", "LayerNorm_0/*")
    assert listed(plan)["bias"] == "CONSTANT"
    moved = {path for path in before if not np.array_equal(before[path], after[path])}
    assert all(path.endswith(("kernel", "embedding")) for path in moved)


def test_drawn_biases_and_gains() -> None:
    drawn = nn.initializers.normal(0.3)

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.relu(nn.Dense(128, bias_init=drawn)(x))
        h = nn.LayerNorm(scale_init=drawn, bias_init=drawn)(h)
        return nn.Dense(256)(h)

    plan, before, after = before_and_after(Net(body), X)
    assert_same(before, after, "Dense_0/bias", "LayerNorm_0/scale", "LayerNorm_0/bias")
    assert listed(plan)["Dense_0/bias"] == "BIAS"
    assert listed(plan)["LayerNorm_0/scale"] == "GAIN"
    # Their moments are propagated, to what follows them.
    measured = moments(Net(body), 8, lambda seed: (normal(seed, (32, 128)),))
    assert measured["Dense_0"] == pytest.approx(1 + 0.3**2, rel=0.1)
    assert measured["output"] == pytest.approx(1, abs=0.1)


def test_zero_initialized_branches_stay_zero_and_the_rest_is_planned() -> None:
    model = ResidualMLP(128, 4, last_init=nn.initializers.zeros)
    plan, before, after = before_and_after(model, X)
    assert_same(before, after, "down*/kernel")
    assert not any(np.any(after[path]) for path in after if path.startswith("down"))
    assert {listed(plan)[f"down{layer}/kernel"] for layer in range(4)} == {"CONSTANT"}
    for layer in range(4):
        # The zero branches add nothing, so the stream stays at 1.
        assert only_row(plan, f"up{layer}/").sigma * 128**0.5 == pytest.approx(1, rel=0.03)
    assert only_row(plan, "head").sigma * 128**0.5 == pytest.approx(1, rel=0.03)


def test_zero_branches_do_not_count_in_the_share_of_the_others() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.Dense(128, name="stem")(x)
        for layer in range(4):
            last = nn.initializers.zeros if layer % 2 else nn.initializers.lecun_normal()
            h = nn.relu(nn.Dense(128, name=f"up{layer}")(nn.LayerNorm()(x)))
            x = x + nn.Dense(128, kernel_init=last, name=f"down{layer}")(h)
        return nn.Dense(256, name="head")(nn.LayerNorm()(x))

    plan, before, after = before_and_after(Net(body), X)
    assert_same(before, after, "down1/kernel", "down3/kernel")
    for name in ("down0", "down2"):
        assert only_row(plan, name).target == pytest.approx(1 / 2, rel=0.03)


@pytest.mark.parametrize(
    "constant",
    [
        nn.initializers.ones,
        nn.initializers.constant(0.3),
        lambda key, shape, dtype=jnp.float32: jnp.eye(*shape, dtype=dtype),
        lambda key, shape, dtype=jnp.float32: (
            jnp.arange(math.prod(shape), dtype=dtype).reshape(shape) / math.prod(shape)
        ),
    ],
    ids=["ones", "constant", "eye", "ramp"],
)
def test_constant_kernels_stay(constant: Any) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(128, name="first")(x))
        x = nn.Dense(128, kernel_init=constant, use_bias=False, name="fixed")(x)
        return nn.Dense(256, name="last")(nn.LayerNorm()(x))

    plan, before, after = before_and_after(Net(body), X)
    assert_same(before, after, "fixed/kernel")
    assert listed(plan)["fixed/kernel"] == "CONSTANT"


def test_padding_row_stays_zero_and_is_left_out_of_the_scale() -> None:
    def padded(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return (0.02 * jax.random.normal(key, shape, dtype)).at[:500].set(0)

    model = TiedLM(64, 0, embedding_init=padded)
    plan, _, after = before_and_after(model, IDX)
    table = np.asarray(after["emb/embedding"])
    assert not np.any(table[:500])
    assert only_row(plan, "emb").sigma * 8 == pytest.approx(1, rel=0.01)
    assert np.sqrt(np.mean(table[500:] ** 2)) * 8 == pytest.approx(1, rel=0.01)


def test_other_collections_stay() -> None:
    model = TiedLM(64, 0, factor="collection")
    before = model.init(keys(0), IDX)
    after = anyinit.flax.init(model, keys(0), IDX)
    assert set(before) == set(after) == {"params", "constants"}
    np.testing.assert_array_equal(before["constants"]["scale"], after["constants"]["scale"])


def test_zero_sized_and_integer_leaves_stay() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        net.param("nothing", nn.initializers.normal(), (0, 4))
        net.param("order", lambda key: jax.random.permutation(key, 8))
        return nn.Dense(128)(x)

    _, before, after = before_and_after(Net(body), X)
    assert_same(before, after, "nothing", "order")


MODELS: dict[str, tuple[nn.Module, Any]] = {
    **{name: (TiedLM(64, 2, **case.fields), IDX) for name, case in MAIN.items()},
    "positions": (TiedLM(64, 2, positions="embed"), IDX),
    "no_norm": (ResidualMLP(128, 6), X),
    "relu": (ReluMLP(128, 8), X),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_second_call_changes_nothing(name: str) -> None:
    model, x = MODELS[name]
    once = anyinit.flax.init(model, keys(0), x)
    twice = anyinit.flax.plan(model, x).rescale(once)
    for path, leaf in flat(once["params"]).items():
        np.testing.assert_allclose(flat(twice["params"])[path], leaf, rtol=1e-3, err_msg=path)


def test_second_call_on_another_draw_changes_scales_only_to_the_same() -> None:
    model, x = MODELS["D"]
    one = flat(anyinit.flax.init(model, keys(0), x)["params"])
    two = flat(anyinit.flax.plan(model, x).rescale(model.init(keys(1), x))["params"])
    for path in rows(anyinit.flax.plan(model, x)):
        assert rms(one[path]) == pytest.approx(rms(two[path]), rel=1e-3)


@pytest.mark.standard_promotion
def test_second_call_in_bfloat16_stays_within_rounding() -> None:
    model = TiedLM(64, 2, **ALL_HALF)
    once = anyinit.flax.init(model, keys(0), IDX)
    twice = anyinit.flax.plan(model, IDX).rescale(once)
    for path, leaf in flat(once["params"]).items():
        new = np.asarray(flat(twice["params"])[path], np.float64)
        np.testing.assert_allclose(new, np.asarray(leaf, np.float64), rtol=2**-7, err_msg=path)


def test_rescale_leaves_its_argument_alone() -> None:
    model = TiedLM(64, 0)
    before = model.init(keys(0), IDX)
    copy = jax.tree.map(np.array, before)
    anyinit.flax.plan(model, IDX).rescale(before)
    jax.tree.map(np.testing.assert_array_equal, before, copy)


@pytest.mark.parametrize("option", ["only", "skip"])
def test_only_and_skip(option: str) -> None:
    model = TiedLM(64, 1, vocab=VOCAB, embedding_init=nn.initializers.normal(1.0))
    before = flat(model.init(keys(0), IDX)["params"])
    chosen = "emb/embedding"
    after = flat(anyinit.flax.init(model, keys(0), IDX, **{option: chosen})["params"])
    same = {path for path in before if np.array_equal(before[path], after[path])}
    assert (chosen in same) == (option == "skip")
    others = "Block_0/Dense_1/kernel"
    assert (others in same) == (option == "only")


def test_tokens_are_not_looked_at() -> None:
    model = TiedLM(64, 1)
    zeros = anyinit.flax.plan(model, IDX)
    assert zeros == anyinit.flax.plan(model, tokens(3, VOCAB))
