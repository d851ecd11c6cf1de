"""A constant factor on the logits counts however it is written, and wherever it sits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import initialized, moment, normal, only_row, others_moment, run, tokens
from models import LENGTH, VOCAB, Net, TiedLM, keep

import anyinit.flax

D = 64
IDX = jnp.zeros((8, LENGTH), jnp.int32)


def log_parameter(net: nn.Module, logits: jax.Array) -> jax.Array:
    log_scale = net.param("log_scale", nn.initializers.constant(-0.5 * np.log(D)), ())
    return logits * jnp.exp(log_scale)


def python_product(x: jax.Array) -> jax.Array:
    for _ in range(6):
        x = x * 0.5
    return x * 8.0


SPELLINGS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "one_over_sqrt_of_an_array": lambda x: (
        x * (jnp.float32(1) / jnp.sqrt(jnp.array(D, jnp.float32)))
    ),
    "rsqrt": lambda x: x * jax.lax.rsqrt(jnp.float32(D)),
    "uniform_vector": lambda x: x * jnp.full((x.shape[-1],), D**-0.5),
    "uniform_numpy_matrix": lambda x: x * np.full(x.shape[-2:], D**-0.5, np.float32),
    "divided_by_a_vector": lambda x: x / jnp.full((x.shape[-1],), D**0.5),
    "negative": lambda x: -x / np.float32(D**0.5),
    "numpy_scalar": lambda x: x / np.sqrt(np.float32(D)),
    "there_and_back": lambda x: x / D * jnp.sqrt(D),
    "stopped": lambda x: x * jax.lax.stop_gradient(jnp.float32(D**-0.5)),
    "lax_mul": lambda x: jax.lax.mul(x, jnp.broadcast_to(jnp.float32(D**-0.5), x.shape)),
    "lax_div": lambda x: jax.lax.div(x, jnp.full_like(x, D**0.5)),
    "norm_of_ones": lambda x: x / jnp.linalg.norm(jnp.ones((D,))),
    "power": lambda x: x * jnp.float32(D) ** -0.5,
    "weak_power": lambda x: x * jnp.power(1.0 * D, -0.5),
    "mean_of_a_constant": lambda x: x * jnp.mean(jnp.linspace(0, 2 * D**-0.5, 5)),
    "half_and_a_quarter": lambda x: x / 16 + x / 16,
    "minus": lambda x: x / 4 - x / 8,
    "interpolated": lambda x: 0.25 * (x / 8) + 0.75 * (x / 8),
    "jitted": jax.jit(lambda x: x * D**-0.5),
    "checkpointed": jax.checkpoint(lambda x: x * D**-0.5),
    "python_product": python_product,
    "indexed_constant": lambda x: x * jnp.array([1.0, D**-0.5, 2.0])[1],
    "chosen": lambda x: jnp.where(jnp.array(True), x, 0.0) * D**-0.5,
    "barrier": lambda x: jax.lax.optimization_barrier(x) * D**-0.5,
    "negated_twice": lambda x: -(-x * D**-0.5),
    "complicated_constant": lambda x: x * jnp.exp(-0.5 * jnp.log(jnp.float32(D))),
    "transposed": lambda x: (x.T * D**-0.5).T,
    "integer": lambda x: x / jnp.array(D).astype(x.dtype) * jnp.array(8, x.dtype),
    "vmapped": jax.vmap(lambda x: x * D**-0.5),
}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", list(SPELLINGS))
def test_factor(name: str, place: str) -> None:
    model = TiedLM(D, **{place: lambda x, d: SPELLINGS[name](x)})
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.c == pytest.approx(1 / 8, rel=0.001)
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(8, rel=0.001)


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_factor_on_the_lookup(name: str) -> None:
    model = TiedLM(D, lookup=lambda x, d: SPELLINGS[name](x), read="untied")
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.c == pytest.approx(1 / 8, rel=0.001)
    assert row.sigma == pytest.approx(8, rel=0.01)
    assert row.m == pytest.approx(8, rel=0.001)


def test_factor_in_two_places() -> None:
    model = TiedLM(D, 2, before=lambda h, d: h * d**-0.25, after=lambda x, d: x / d**0.25)
    plan, variables = initialized(model, 0, IDX)
    row = only_row(plan, "emb")
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(8, rel=0.001)
    idx = tokens(1, VOCAB)
    assert others_moment(run(model, variables, idx)[0], idx) == pytest.approx(1, abs=0.1)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("d", [64, 200])
def test_factor_in_bfloat16(d: int, place: str) -> None:
    factor = {place: lambda x, d: x / jnp.sqrt(x.shape[-1] if place == "before" else d)}
    model = TiedLM(d, dtype=jnp.bfloat16, **factor)
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(d**0.5, rel=0.01)


@pytest.mark.standard_promotion
def test_factor_after_a_cast_to_float32() -> None:
    model = TiedLM(D, dtype=jnp.bfloat16, after=lambda x, d: x.astype(jnp.float32) * d**-0.5)
    assert only_row(anyinit.flax.plan(model, IDX), "emb").sigma == pytest.approx(1, rel=0.01)


def test_gain_of_a_norm_is_no_factor() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(VOCAB, D)
        return emb.attend(nn.LayerNorm(scale_init=nn.initializers.constant(D**-0.5))(emb(idx)))

    plan, variables = initialized(Net(body), 0, IDX)
    row = only_row(plan, "Embed")
    # The same scale as with a factor behind the norm, but no higher rate.
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == row.c == 1
    assert row.moment_in == pytest.approx(1 / D, rel=0.01)
    idx = tokens(1, VOCAB)
    assert others_moment(run(Net(body), variables, idx)[0], idx) == pytest.approx(1, abs=0.1)


def test_factor_on_the_table_itself() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        table = net.param("table", nn.initializers.normal(0.02), (VOCAB, D)) * D**-0.5
        return nn.LayerNorm()(table[idx]) @ table.T

    row = only_row(anyinit.flax.plan(Net(body), IDX), "table")
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(8, rel=0.001)
    assert row.arrival == pytest.approx(1 / D, rel=0.02)


def test_factor_on_the_table_in_the_readout_only() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        table = net.param("table", nn.initializers.normal(0.02), (VOCAB, D))
        return nn.LayerNorm()(table[idx]) @ (table / jnp.sqrt(D)).T

    row = only_row(anyinit.flax.plan(Net(body), IDX), "table")
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.arrival == pytest.approx(1, rel=0.02)


def test_factor_as_an_operand_of_einsum() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(VOCAB, D)
        h = nn.LayerNorm()(emb(idx))
        return jnp.einsum("btd,vd,->btv", h, emb.embedding, jnp.float32(D**-0.5))

    assert only_row(anyinit.flax.plan(Net(body), IDX), "Embed").m == pytest.approx(8, rel=0.001)


def test_exponential_of_a_parameter() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(VOCAB, D)
        return log_parameter(net, emb.attend(nn.LayerNorm()(emb(idx))))

    plan = anyinit.flax.plan(Net(body), IDX)
    assert only_row(plan, "Embed").sigma == pytest.approx(1, rel=0.01)
    assert "log_scale" in {left.path for left in plan.left_alone}


def test_mean_of_products_counts_its_division() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(128, D)
        h = nn.LayerNorm()(emb(idx))
        return jnp.mean(h[..., None, :] * emb.embedding, axis=-1)

    plan, variables = initialized(Net(body), 0, IDX)
    row = only_row(plan, "Embed")
    assert row.c == pytest.approx(1 / D, rel=0.001)
    assert row.sigma == pytest.approx(D**0.5, rel=0.01)
    idx = tokens(1, 128)
    assert others_moment(run(Net(body), variables, idx)[0], idx) == pytest.approx(1, abs=0.15)


CAPS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": lambda x: 30 * jnp.tanh(x / 30),
    "tanh_then_divided": lambda x: jnp.tanh(x * (1 / 50)) / (1 / 50),
    "softsign": lambda x: 20 * (x / 20 / (1 + jnp.abs(x / 20))),
    "softsign_unfactored": lambda x: 1.0 * (x / (1 + jnp.abs(x) / 25)),
    "rsqrt": lambda x: 1.0 * (x * jax.lax.rsqrt(1 + jnp.square(x) / 15**2)),
    "sigmoid": lambda x: 30 * jax.nn.sigmoid(x / 7.5),
    "arctan": lambda x: 30 * jnp.arctan(x / 30),
}


@pytest.mark.parametrize("factor", [1.0, D**-0.5], ids=["alone", "scaled"])
@pytest.mark.parametrize("name", list(CAPS))
def test_soft_cap_counts_by_its_slope_at_zero(name: str, factor: float) -> None:
    cap = CAPS[name]
    model = TiedLM(D, before=lambda x, d: x * factor, after=lambda x, d: cap(x))
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.c == pytest.approx(factor, rel=0.01)
    assert row.sigma == pytest.approx(1 / (factor * D**0.5), rel=0.01)


def test_steep_cap_counts_by_its_slope_at_zero() -> None:
    model = TiedLM(D, after=lambda x, d: 30 * jnp.tanh(x / 10))
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.c == pytest.approx(3, rel=0.01)
    assert row.m == pytest.approx(1 / 3, rel=0.01)


def test_bounded_function_without_a_factor_behind_it_is_a_nonlinearity() -> None:
    model = TiedLM(D, after=lambda x, d: jnp.tanh(x / 4))
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    # A quarter of the logits is what enters the tanh, with second moment 1.
    assert row.sigma * D**0.5 == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("output", [jax.nn.softmax, jax.nn.sigmoid, jax.nn.logsumexp])
@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_outputs_behind_a_nonlinearity(output: Any, factor: float) -> None:
    model = TiedLM(D, after=lambda x, d: output(factor * x))
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.sigma * D**0.5 * factor == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(1 / factor, rel=0.001)


NORMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "layer_norm": lambda h: (
        (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)
    ),
    "rms_norm": lambda h: h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6),
    "rms_norm_powers": lambda h: h / jnp.power(jnp.mean(jnp.power(h, 2), -1, keepdims=True), 0.5),
    "rms_norm_half": lambda h: (
        h.astype(jnp.bfloat16).astype(jnp.float32)
        * jax.lax.rsqrt(jnp.mean(jnp.square(h.astype(jnp.float32)), -1, keepdims=True) + 1e-6)
    ),
    "standardize": jax.nn.standardize,
    "unit_norm_times_root": lambda h: D**0.5 * h / jnp.linalg.norm(h, axis=-1, keepdims=True),
    "bounded_below": lambda h: h / jnp.maximum(jnp.sqrt(jnp.mean(h**2, -1, keepdims=True)), 1e-6),
}


@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("name", list(NORMS))
def test_norms_by_hand_before_the_readout(name: str, factor: float) -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(VOCAB, D)
        h = nn.Dense(D)(nn.relu(nn.Dense(4 * D)(factor * emb(idx))))
        return emb.attend(NORMS[name](h))

    row = only_row(anyinit.flax.plan(Net(body), IDX), "Embed")
    assert row.moment_in == pytest.approx(1, rel=0.02)
    assert row.sigma * D**0.5 == pytest.approx(1, rel=0.01)


def test_unit_norm_without_its_root_counts_in_the_moment() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(VOCAB, D)
        h = emb(idx)
        return emb.attend(h / jnp.linalg.norm(h, axis=-1, keepdims=True))

    row = only_row(anyinit.flax.plan(Net(body), IDX), "Embed")
    assert row.sigma == pytest.approx(1, rel=0.02)
    assert row.m == 1


def test_factor_of_a_dense_layer() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.relu(0.5 * nn.Dense(256, name="first")(x))
        return nn.Dense(256, name="last")(h * 3) / 5

    plan, variables = initialized(Net(body), 0, jnp.zeros((64, 256)))
    first, last = only_row(plan, "first"), only_row(plan, "last")
    assert (first.c, last.c) == (pytest.approx(0.5), pytest.approx(3 / 5))
    assert (first.m, last.m) == (pytest.approx(2), pytest.approx(5 / 3))
    output, captured = run(Net(body), variables, normal(1, (64, 256)))
    assert moment(captured["first"]) == pytest.approx(4, rel=0.1)
    assert moment(output) == pytest.approx(1, abs=0.15)


@functools.cache
def untouched() -> float:
    return only_row(anyinit.flax.plan(TiedLM(D, before=keep), IDX), "emb").sigma


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.reshape(-1, x.shape[-1]),
        lambda x: x[:, -1, :],
        lambda x: jnp.concatenate([x[:, 1:], x[:, :1]], 1),
        lambda x: jnp.flip(x, 1),
        lambda x: jnp.swapaxes(x, 0, 1),
        lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 48)), constant_values=-1e9),
        lambda x: x.astype(jnp.bfloat16),
        lambda x: jnp.where(jnp.arange(x.shape[-1]) == 0, -jnp.inf, x),
        lambda x: x - jax.nn.logsumexp(x, axis=-1, keepdims=True),
        lambda x: x.at[..., 0].set(-jnp.inf),
        lambda x: jnp.split(x, 2, axis=-1)[0],
        lambda x: x - jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True)),
        lambda x: {"logits": x, "prediction": jnp.argmax(x, -1)},
        lambda x: jnp.take(x, jnp.arange(10), axis=-1),
    ],
    ids=[
        "reshaped",
        "last_token",
        "rolled",
        "flipped",
        "swapped",
        "padded",
        "cast",
        "masked",
        "log_softmax_by_hand",
        "scattered_mask",
        "split",
        "maximum_taken_away",
        "with_prediction",
        "taken",
    ],
)
def test_what_follows_the_logits_changes_nothing(change: Any) -> None:
    model = TiedLM(D, after=lambda x, d: change(x))
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.sigma == pytest.approx(untouched(), rel=0.01)
    assert row.m == 1
