"""Averages whose weights are divided by their sum last, in every spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flat_run import measured
from measure import normal, rows
from models import Net

import anyinit

B, T, D, HEADS, OUT = 8, 64, 128, 2, 256


def sequences(seed: int) -> tuple[jax.Array]:
    return (normal(seed, (B, T, D)),)


def heads(x: jax.Array, name: str) -> jax.Array:
    return nn.DenseGeneral((HEADS, D // HEADS), name=name, use_bias=False)(x)


def scores_and_values(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    q, k, v = (heads(x, name) for name in "qkv")
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) / (D // HEADS) ** 0.5, v


def divided_last(x: jax.Array) -> jax.Array:
    scores, v = scores_and_values(x)
    weights = jnp.exp(scores)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed / jnp.swapaxes(weights.sum(-1), 1, 2)[..., None]


def times_reciprocal(x: jax.Array) -> jax.Array:
    scores, v = scores_and_values(x)
    weights = jnp.where(jnp.tril(jnp.ones((T, T), bool)), jnp.exp(scores - scores.max()), 0.0)
    inverse = 1.0 / (jnp.sum(weights, axis=-1) + 1e-6)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v) * inverse.swapaxes(1, 2)[..., None]


def in_blocks(x: jax.Array) -> jax.Array:
    """A running maximum and two running sums over blocks of keys."""
    q, k, v = (heads(x, name).swapaxes(1, 2) for name in "qkv")
    q = q / (D // HEADS) ** 0.5
    blocks = [jnp.moveaxis(a.reshape(B, HEADS, 4, T // 4, -1), 2, 0) for a in (k, v)]

    def block(carry: Any, keys_and_values: Any) -> tuple[Any, None]:
        largest, total, mixed = carry
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys_and_values[0])
        new = jnp.maximum(largest, scores.max(axis=-1))
        weights, kept = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
        total = total * kept + weights.sum(axis=-1)
        part = jnp.einsum("bhqk,bhkd->bhqd", weights, keys_and_values[1])
        return (new, total, mixed * kept[..., None] + part), None

    start = (jnp.full(q.shape[:-1], -jnp.inf), jnp.zeros(q.shape[:-1]), jnp.zeros_like(q))
    (_, total, mixed), _ = jax.lax.scan(block, start, tuple(blocks))
    return (mixed / total[..., None]).swapaxes(1, 2)


def without_queries(x: jax.Array) -> jax.Array:
    """A weight for each feature (the attention-free transformer)."""
    weights, values = jnp.exp(heads(x, "k")), heads(x, "v")
    return jnp.cumsum(weights * values, axis=1) / jnp.cumsum(weights, axis=1)


def linear(x: jax.Array) -> jax.Array:
    q, k, v = (heads(x, name) for name in "qkv")
    q, k = nn.softplus(q), nn.softplus(k)
    mixed = jnp.einsum("bqhd,bhde->bqhe", q, jnp.einsum("bkhd,bkhe->bhde", k, v))
    return mixed / jnp.einsum("bqhd,bhd->bqh", q, k.sum(axis=1))[..., None]


SPELLINGS: dict[str, Callable[[jax.Array], jax.Array]] = {
    f.__name__: f for f in (divided_last, times_reciprocal, in_blocks, without_queries, linear)
}


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_keeps_the_scale_of_what_it_averages(name: str) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        mixed = SPELLINGS[name](x)
        h = x + nn.DenseGeneral(D, axis=(-2, -1), name="o", use_bias=False)(mixed)
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(h))

    found = measured(Net(body), sequences)
    planned = rows(found.plan)
    assert planned["o/kernel"].moment_in == pytest.approx(1, rel=0.02)
    assert planned["o/kernel"].at_most
    assert planned["o/kernel"].site == "residual stream"
    assert planned["v/kernel"].site == "another weight"
    assert planned["v/kernel"].sigma == pytest.approx(D**-0.5, rel=0.01)
    assert found.difference < 1e-4
    assert found.outputs[0] == pytest.approx(1, abs=0.15)


def test_pooling_by_learned_weights() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.Dense(D, name="value")(x)
        gates = nn.sigmoid(nn.Dense(1, name="gate")(x))
        pooled = (gates * h).sum(axis=1) / gates.sum(axis=1)
        return nn.Dense(OUT, name="head")(pooled)

    planned = rows(measured(Net(body), sequences).plan)
    assert planned["gate/kernel"].site == "nonlinearity"
    assert planned["head/kernel"].at_most
    assert planned["head/kernel"].moment_in == pytest.approx(1, rel=0.02)


def test_a_mask_of_tokens_stays_a_pooling() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        h = nn.Dense(D, name="value")(nn.Embed(1_000, D)(idx))
        mask = (idx > 0)[..., None].astype(h.dtype)
        return nn.Dense(OUT, name="head")((h * mask).sum(axis=1) / mask.sum(axis=1))

    idx = jax.random.randint(jax.random.key(0), (B, T), 0, 1_000)
    assert rows(anyinit.flax.plan(Net(body), idx))["value/kernel"].site == "pooling"
