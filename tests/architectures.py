"""Language models, classifiers and towers of many shapes, as functions of a module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from models import LENGTH

VOCAB, D, HEADS, LAYERS = 1_000, 128, 4, 4


def split_heads(x: jax.Array, heads: int = HEADS) -> jax.Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def causal(idx: jax.Array) -> jax.Array:
    return nn.make_causal_mask(idx, dtype=bool)


def attention(idx: jax.Array, h: jax.Array, name: str) -> jax.Array:
    layer = nn.MultiHeadDotProductAttention(HEADS, name=f"attention{name}")
    return layer(h, mask=causal(idx))


def mlp(h: jax.Array, name: str) -> jax.Array:
    return nn.Dense(D, name=f"down{name}")(nn.gelu(nn.Dense(4 * D, name=f"up{name}")(h)))


def parallel_blocks(net: nn.Module, idx: jax.Array) -> jax.Array:
    """Attention and MLP read the same norm and are added at once (GPT-J, PaLM)."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        h = nn.LayerNorm()(x)
        x = x + attention(idx, h, f"{layer}") + mlp(h, f"{layer}")
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))


def parallel_blocks_grouped(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        h = nn.LayerNorm()(x)
        x = x + (attention(idx, h, f"{layer}") + mlp(h, f"{layer}"))
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))


def residual_on_the_right(net: nn.Module, idx: jax.Array) -> jax.Array:
    """The branch comes first in the addition, and the additions are of several spellings."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        x = attention(idx, nn.LayerNorm()(x), f"{layer}") + x
        b = mlp(nn.LayerNorm()(x), f"{layer}")
        x = jnp.add(b, x) if layer % 2 else jax.lax.add(b, x)
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))


def residual_as_a_sum_of_a_list(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        x = sum([x, attention(idx, nn.LayerNorm()(x), f"{layer}")])
        x = jnp.sum(jnp.stack([x, mlp(nn.LayerNorm()(x), f"{layer}")]), axis=0)
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))


def residual_dropout(net: nn.Module, idx: jax.Array) -> jax.Array:
    drop = nn.Dropout(0.1, deterministic=False)
    x = drop(nn.Embed(VOCAB, D, name="emb")(idx))
    for layer in range(LAYERS):
        x = x + drop(attention(idx, nn.LayerNorm()(x), f"{layer}"))
        x = x + drop(mlp(nn.LayerNorm()(x), f"{layer}"))
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))


def post_norm(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        x = nn.LayerNorm()(x + attention(idx, x, f"{layer}"))
        x = nn.LayerNorm()(x + mlp(x, f"{layer}"))
    return nn.Dense(VOCAB, use_bias=False, name="head")(x)


def no_final_norm(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        x = x + mlp(nn.LayerNorm()(x), f"{layer}")
    return nn.Dense(VOCAB, use_bias=False, name="head")(x)


def angles(length: int, half: int) -> jax.Array:
    """Angle by position and frequency."""
    position, frequency = jnp.arange(length, dtype=jnp.float32), jnp.arange(half, dtype=jnp.float32)
    return position[:, None] * jnp.exp(-math.log(10_000) / half * frequency)


def rotary(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angle = angles(x.shape[1], half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def llama(net: nn.Module, idx: jax.Array) -> jax.Array:
    """RMSNorm, rotary positions, grouped keys, SwiGLU, no biases."""

    def dense(features: int, name: str) -> nn.Dense:
        return nn.Dense(features, use_bias=False, name=name)

    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        h = nn.RMSNorm()(x)
        q = rotary(split_heads(dense(D, f"q{layer}")(h)))
        k = rotary(split_heads(dense(D // 2, f"k{layer}")(h), HEADS // 2))
        v = split_heads(dense(D // 2, f"v{layer}")(h), HEADS // 2)
        k, v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + dense(D, f"o{layer}")(mixed.reshape(x.shape))
        h = nn.RMSNorm()(x)
        gate, up = dense(3 * D, f"gate{layer}")(h), dense(3 * D, f"up{layer}")(h)
        x = x + dense(D, f"down{layer}")(nn.silu(gate) * up)
    return dense(VOCAB, "head")(nn.RMSNorm()(x))


def bert(net: nn.Module, idx: jax.Array, segments: jax.Array) -> jax.Array:
    """Tokens, segments and positions under one norm; a tied head behind a transform."""
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx) + nn.Embed(2, D, name="segments")(segments)
    x = nn.LayerNorm()(x + nn.Embed(LENGTH, D, name="positions")(jnp.arange(idx.shape[1])))
    for layer in range(LAYERS):
        mixed = nn.MultiHeadDotProductAttention(HEADS, name=f"attention{layer}")(x)
        x = nn.LayerNorm()(x + mixed)
        x = nn.LayerNorm()(x + mlp(x, f"{layer}"))
    h = nn.LayerNorm()(nn.gelu(nn.Dense(D, name="transform")(x)))
    return emb.attend(h) + net.param("bias", nn.initializers.zeros, (VOCAB,))


def three_lookups(net: nn.Module, idx: jax.Array, segments: jax.Array) -> jax.Array:
    positions = net.param("positions", nn.initializers.normal(0.02), (1, 64, D))
    x = nn.Embed(VOCAB, D, name="emb")(idx) + positions[:, : idx.shape[1]]
    x = x + nn.Embed(2, D, name="segments")(segments)
    net.sow("intermediates", "arrival", x)
    return nn.Dense(VOCAB, name="head")(nn.relu(nn.Dense(D, name="up")(x)))


def concatenated_lookups(net: nn.Module, idx: jax.Array, segments: jax.Array) -> jax.Array:
    parts = [nn.Embed(VOCAB, 96, name="emb")(idx), nn.Embed(2, 32, name="segments")(segments)]
    x = jnp.concatenate(parts, -1)
    net.sow("intermediates", "arrival", x)
    return nn.Dense(VOCAB, name="head")(nn.relu(nn.Dense(D, name="up")(x)))


def sinusoids(net: nn.Module, idx: jax.Array) -> jax.Array:
    """Vaswani's model: √d on the lookup, constant positions, a tied head."""
    emb = nn.Embed(VOCAB, D, name="emb")
    angle = angles(idx.shape[1], D // 2)
    x = emb(idx) * math.sqrt(D) + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    for layer in range(LAYERS):
        x = nn.LayerNorm()(x + attention(idx, x, f"{layer}"))
        x = nn.LayerNorm()(x + mlp(x, f"{layer}"))
    return emb.attend(x)


def positions_before_the_multiplier(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(VOCAB, D, name="emb")
    positions = nn.Embed(LENGTH, D, name="positions")(jnp.arange(idx.shape[1]))
    x = (emb(idx) + positions) * math.sqrt(D)
    x = x + mlp(nn.LayerNorm()(x), "")
    return emb.attend(nn.LayerNorm()(x))


def norm_after_the_lookup(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.LayerNorm()(nn.Embed(VOCAB, D, name="emb")(idx))
    x = x + mlp(nn.LayerNorm()(x), "")
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def factorized_table(net: nn.Module, idx: jax.Array) -> jax.Array:
    """ALBERT's: a narrow table, one projection up and one down, tied."""
    emb = nn.Embed(VOCAB, 64, name="emb")
    x = nn.Dense(D, name="widen")(emb(idx))
    x = x + mlp(nn.LayerNorm()(x), "")
    return emb.attend(nn.Dense(64, name="narrow")(nn.LayerNorm()(x)))


def cosine_readout(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx)
    x = x + mlp(nn.LayerNorm()(x), "")
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    rows = emb.embedding / jnp.linalg.norm(emb.embedding, axis=-1, keepdims=True)
    return 10 * x @ rows.T


def cosine_readout_with_multiplier(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx) * jnp.sqrt(D)
    x = x + mlp(nn.LayerNorm()(x), "")
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    rows = emb.embedding / jnp.linalg.norm(emb.embedding, axis=-1, keepdims=True)
    return x @ rows.T


def two_readouts(net: nn.Module, idx: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next token and the one after it, from the same table."""
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx)
    x = x + mlp(nn.LayerNorm()(x), "0")
    further = mlp(nn.LayerNorm()(x), "1")
    return emb.attend(nn.LayerNorm()(x)), emb.attend(nn.LayerNorm()(further))


def summed_readouts(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx)
    left, right = nn.LayerNorm()(mlp(x, "0")), nn.LayerNorm()(mlp(x, "1"))
    return emb.attend(left) + emb.attend(right)


def split_readout(net: nn.Module, idx: jax.Array) -> jax.Array:
    """The contraction over d written as a sum of two halves."""
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx)
    h, half = nn.LayerNorm()(x + mlp(nn.LayerNorm()(x), "")), D // 2
    left, right = emb.embedding[:, :half], emb.embedding[:, half:]
    return h[..., :half] @ left.T + h[..., half:] @ right.T


def pooled_classifier(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    h = nn.relu(nn.Dense(2 * D, name="hidden")(x)).mean(axis=1)
    return nn.Dense(512, name="head")(h)


def bag_of_words(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx).sum(axis=1)
    return nn.Dense(512, name="head")(nn.relu(nn.Dense(2 * D, name="hidden")(x)))


def logits_and_loss(net: nn.Module, idx: jax.Array) -> tuple[jax.Array, jax.Array]:
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx)
    logits = emb.attend(nn.LayerNorm()(x + mlp(nn.LayerNorm()(x), "")))
    targets = jnp.take_along_axis(jax.nn.log_softmax(logits)[:, :-1], idx[:, 1:, None], -1)
    return logits, -jnp.mean(targets)


def loss_only(net: nn.Module, idx: jax.Array) -> jax.Array:
    return logits_and_loss(net, idx)[1]


def logits_and_z_loss(net: nn.Module, idx: jax.Array) -> dict[str, jax.Array]:
    logits, loss = logits_and_loss(net, idx)
    z = jax.nn.logsumexp(logits, axis=-1)
    return {"logits": logits, "loss": loss + 1e-4 * jnp.mean(z**2)}


def language_and_value(net: nn.Module, idx: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    h = nn.LayerNorm()(x + mlp(nn.LayerNorm()(x), ""))
    return nn.Dense(VOCAB, name="head")(h), nn.Dense(256, name="value")(h)


def unscaled_scores(net: nn.Module, x: jax.Array) -> jax.Array:
    """T5's attention: no 1/√d_head on the scores."""
    q, k, v = (nn.Dense(D, use_bias=False, name=name)(x) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", split_heads(q), split_heads(k))
    net.sow("intermediates", "scores", scores)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), split_heads(v))
    return nn.Dense(256, name="out")(mixed.reshape(x.shape))


def relative_positions(layers: int, masked: bool, read: bool = False) -> Callable[..., Any]:
    """T5's bias on the scores, one table for all layers; ``read``, by a product as well."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        length = x.shape[1]
        distance = jnp.arange(length)[None] - jnp.arange(length)[:, None]
        bias = nn.Embed(2 * length, HEADS, name="bias")(distance + length).transpose(2, 0, 1)
        if read:
            x = x + nn.Dense(D, name="reader")(bias.transpose(1, 2, 0)).mean(axis=1)
        if masked:
            bias = bias[None] + jnp.where(distance > 0, -1e9, 0.0)
        for layer in range(layers):
            h = nn.LayerNorm()(x)
            q, k, v = (nn.Dense(D, use_bias=False, name=f"{name}{layer}")(h) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", split_heads(q), split_heads(k))
            net.sow("intermediates", "scores", scores)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores + bias), split_heads(v))
            x = x + nn.Dense(D, name=f"out{layer}")(mixed.reshape(x.shape))
        return nn.Dense(256, name="head")(nn.LayerNorm()(x))

    return body


def scaled_scores(net: nn.Module, x: jax.Array) -> jax.Array:
    """The factor split over query and key; softmax by hand."""
    q, k, v = (nn.Dense(D, use_bias=False, name=name)(x) for name in "qkv")
    quarter = (D / HEADS) ** -0.25
    scores = jnp.einsum("bqhd,bkhd->bhqk", split_heads(q * quarter), split_heads(k * quarter))
    net.sow("intermediates", "scores", scores)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, split_heads(v))
    return nn.Dense(256, name="out")(mixed.reshape(x.shape))


def two_towers(net: nn.Module, users: jax.Array, items: jax.Array) -> jax.Array:
    left = nn.Embed(VOCAB, D, name="users")(users)
    right = nn.Embed(VOCAB, D, name="items")(items)
    return jnp.sum(left * right, axis=-1)


def patches(net: nn.Module, x: jax.Array) -> jax.Array:
    """A vision transformer: positions are added to a computed signal."""
    h = nn.Dense(D, name="patch")(x)
    h = h + net.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], D))
    for layer in range(LAYERS):
        mixed = nn.MultiHeadDotProductAttention(HEADS, name=f"attention{layer}")
        h = h + mixed(nn.LayerNorm()(h))
        h = h + mlp(nn.LayerNorm()(h), f"{layer}")
    return nn.Dense(512, name="head")(nn.LayerNorm()(h).mean(axis=1))


def residual_multiplier(multiplier: float):
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, D, name="emb")(idx)
        for layer in range(LAYERS):
            x = x + multiplier * mlp(nn.LayerNorm()(x), f"{layer}")
        return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))

    return body
