"""Transformers of many makes: encoder-decoder, parallel, sandwiched, gated, scaled, capped."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from architectures import mlp, rotary
from breadth_case import HEADS, VOCAB, D, network, text, two_texts, vectors

LAYERS = 2


def heads_of(x: jax.Array, name: str) -> jax.Array:
    return nn.DenseGeneral((HEADS, D // HEADS), use_bias=False, name=name)(x)


def merged(x: jax.Array, name: str) -> jax.Array:
    return nn.DenseGeneral(D, axis=(-2, -1), use_bias=False, name=name)(x)


def self_attention(x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    attention = nn.MultiHeadDotProductAttention(HEADS, name=f"attention{name}")
    return attention(x, mask=nn.make_causal_mask(idx, dtype=bool))


def buckets(queries: int, keys: int) -> jax.Array:
    distance = jnp.arange(keys)[None, :] - jnp.arange(queries)[:, None]
    return jnp.clip(distance + 16, 0, 31)


def t5_attention(
    x: jax.Array, memory: jax.Array, bias: jax.Array | None, causal: bool, name: str
) -> jax.Array:
    """No 1/√d_head; a learned bias by relative position."""
    q, k, v = (heads_of(y, f"{name}_{n}") for y, n in ((x, "q"), (memory, "k"), (memory, "v")))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores if bias is None else scores + bias
    if causal:
        mask = jnp.tril(jnp.ones((x.shape[1], memory.shape[1]), bool))
        scores = jnp.where(mask, scores, -1e9)
    return merged(jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v), f"{name}_o")


def t5(net: nn.Module, source: jax.Array, target: jax.Array) -> jax.Array:
    """Encoder-decoder with relative position bias, tied, 1/√d on the logits."""
    emb = nn.Embed(VOCAB, D, name="emb")

    def position_bias(length: int, name: str) -> jax.Array:
        table = nn.Embed(32, HEADS, name=name)
        return jnp.transpose(table(buckets(length, length)), (2, 0, 1))[None]

    def feed_forward(x: jax.Array, name: str) -> jax.Array:
        h = nn.relu(nn.Dense(4 * D, use_bias=False, name=f"{name}_up")(x))
        return nn.Dense(D, use_bias=False, name=f"{name}_down")(h)

    x, bias = emb(source), position_bias(source.shape[1], "encoder_bias")
    for layer in range(LAYERS):
        h = nn.RMSNorm()(x)
        x = x + t5_attention(h, h, bias, False, f"encoder{layer}")
        x = x + feed_forward(nn.RMSNorm()(x), f"encoder{layer}")
    memory = nn.RMSNorm()(x)
    x, bias = emb(target), position_bias(target.shape[1], "decoder_bias")
    for layer in range(LAYERS):
        h = nn.RMSNorm()(x)
        x = x + t5_attention(h, h, bias, True, f"decoder{layer}")
        x = x + t5_attention(nn.RMSNorm()(x), memory, None, False, f"cross{layer}")
        x = x + feed_forward(nn.RMSNorm()(x), f"decoder{layer}")
    return emb.attend(nn.RMSNorm()(x) / math.sqrt(D))


def language_model(block: Any, multiplier: float = 1.0) -> Any:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, D, name="emb")(idx) * multiplier
        for layer in range(LAYERS):
            x = block(net, x, idx, f"{layer}")
        return nn.Dense(VOCAB, use_bias=False, name="head")(nn.LayerNorm()(x))

    return body


def parallel(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    """Attention and MLP in parallel, queries, keys, values and MLP from one fused projection."""
    h = nn.LayerNorm()(x)
    fused = nn.Dense(3 * D + 4 * D, use_bias=False, name=f"fused{name}")(h)
    q, k, v, up = jnp.split(fused, (D, 2 * D, 3 * D), axis=-1)
    q, k, v = (y.reshape(*y.shape[:-1], HEADS, -1) for y in (q, k, v))
    mixed = jax.nn.dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
    both = jnp.concatenate([mixed.reshape(x.shape), nn.gelu(up)], axis=-1)
    return x + nn.Dense(D, use_bias=False, name=f"out{name}")(both)


def sandwich(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    """Norms before and after each branch (Gemma 2, OLMo 2)."""
    x = x + nn.RMSNorm()(self_attention(nn.RMSNorm()(x), idx, name))
    return x + nn.RMSNorm()(mlp(nn.RMSNorm()(x), name))


def query_key_norm(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    h = nn.RMSNorm()(x)
    q, k, v = (heads_of(h, f"{n}{name}") for n in "qkv")
    q, k = nn.RMSNorm()(q), nn.RMSNorm()(k)
    mixed = jax.nn.dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
    x = x + merged(mixed, f"o{name}")
    return x + mlp(nn.RMSNorm()(x), name)


def deep_norm(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    """Post-norm with the stream multiplied: LayerNorm(α x + branch)."""
    alpha = (2 * LAYERS) ** 0.25
    x = nn.LayerNorm()(alpha * x + self_attention(x, idx, name))
    return nn.LayerNorm()(alpha * x + mlp(x, name))


def granite(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    x = x + 0.22 * self_attention(nn.RMSNorm()(x), idx, name)
    return x + 0.22 * mlp(nn.RMSNorm()(x), name)


def rezero(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    alpha = net.param(f"alpha{name}", nn.initializers.zeros, ())
    x = x + alpha * self_attention(x, idx, name)
    return x + alpha * mlp(x, name)


def layer_scale(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    def scale(kind: str) -> jax.Array:
        return net.param(f"{kind}_scale{name}", nn.initializers.constant(1e-5), (D,))

    x = x + scale("attention") * self_attention(nn.LayerNorm()(x), idx, name)
    return x + scale("mlp") * mlp(nn.LayerNorm()(x), name)


def gated(activation: Any) -> Any:
    def block(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
        x = x + self_attention(nn.RMSNorm()(x), idx, name)
        h = nn.RMSNorm()(x)
        gate = activation(nn.Dense(3 * D, use_bias=False, name=f"gate{name}")(h))
        h = gate * nn.Dense(3 * D, use_bias=False, name=f"up{name}")(h)
        return x + nn.Dense(D, use_bias=False, name=f"down{name}")(h)

    return block


def squared_relu(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    x = x + self_attention(nn.RMSNorm()(x), idx, name)
    h = jnp.square(nn.relu(nn.Dense(4 * D, use_bias=False, name=f"up{name}")(nn.RMSNorm()(x))))
    return x + nn.Dense(D, use_bias=False, name=f"down{name}")(h)


def soft_capped(net: nn.Module, idx: jax.Array) -> jax.Array:
    """Gemma 2: a multiplier on the lookup, capped scores, capped logits, tied."""
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx) * jnp.sqrt(float(D))
    for layer in range(LAYERS):
        h = nn.RMSNorm()(x)
        q, k, v = (heads_of(h, f"{n}{layer}") for n in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(D // HEADS), k)
        scores = 50 * jnp.tanh(scores / 50)
        scores = jnp.where(nn.make_causal_mask(idx, dtype=bool), scores, -1e30)
        x = x + merged(jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v), f"o{layer}")
        x = x + mlp(nn.RMSNorm()(x), f"{layer}")
    return 30 * jnp.tanh(emb.attend(nn.RMSNorm()(x)) / 30)


def linear_attention(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    """Elu + 1 as feature map; numerator and denominator by cumulative sums."""
    h = nn.LayerNorm()(x)
    q, k, v = (heads_of(h, f"{n}{name}") for n in "qkv")
    q, k = nn.elu(q) + 1, nn.elu(k) + 1
    state = jnp.cumsum(jnp.einsum("bthd,bthe->bthde", k, v), axis=1)
    total = jnp.einsum("bthd,bthd->bth", q, jnp.cumsum(k, axis=1))
    mixed = jnp.einsum("bthd,bthde->bthe", q, state) / (total[..., None] + 1e-6)
    x = x + merged(mixed, f"o{name}")
    return x + mlp(nn.LayerNorm()(x), name)


def attention_sink(net: nn.Module, x: jax.Array, idx: jax.Array, name: str) -> jax.Array:
    """A learned logit a head that takes part in the softmax and is then dropped."""
    h = nn.RMSNorm()(x)
    q, k, v = (heads_of(h, f"{n}{name}") for n in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D // HEADS)
    scores = jnp.where(nn.make_causal_mask(idx, dtype=bool), scores, -1e30)
    sink = net.param(f"sink{name}", nn.initializers.zeros, (1, HEADS, 1, 1))
    sink = jnp.broadcast_to(sink, (*scores.shape[:-1], 1))
    weights = nn.softmax(jnp.concatenate([scores, sink], axis=-1))[..., :-1]
    x = x + merged(jnp.einsum("bhqk,bkhd->bqhd", weights, v), f"o{name}")
    return x + mlp(nn.RMSNorm()(x), name)


def latent_queries(net: nn.Module, x: jax.Array) -> jax.Array:
    """Perceiver: learned latents attend to the input."""
    latents = net.param("latents", nn.initializers.normal(1.0), (16, D))
    z = jnp.broadcast_to(latents, (x.shape[0], 16, D))
    memory = nn.LayerNorm()(nn.Dense(D, name="into")(x))
    for layer in range(LAYERS):
        cross = nn.MultiHeadDotProductAttention(HEADS, name=f"cross{layer}")
        z = z + cross(nn.LayerNorm()(z), memory)
        z = z + mlp(nn.LayerNorm()(z), f"{layer}")
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(z))


def low_rank(net: nn.Module, idx: jax.Array) -> jax.Array:
    """Multi-head latent attention and LoRA: products of two narrow matrices."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(LAYERS):
        h = nn.RMSNorm()(x)
        latent = nn.RMSNorm()(nn.Dense(32, use_bias=False, name=f"kv_down{layer}")(h))
        k, v = (heads_of(latent, f"{n}{layer}") for n in "kv")
        q = heads_of(nn.Dense(48, use_bias=False, name=f"q_down{layer}")(h), f"q{layer}")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + merged(mixed, f"o{layer}")
        h = nn.RMSNorm()(x)
        a = net.param(f"lora_a{layer}", nn.initializers.normal(0.02), (D, 8))
        b = net.param(f"lora_b{layer}", nn.initializers.zeros, (8, D))
        x = x + mlp(h, f"{layer}") + h @ a @ b
    return nn.Dense(VOCAB, use_bias=False, name="head")(nn.RMSNorm()(x))


def unnamed(z: jax.Array) -> jax.Array:
    """An activation that nobody has named."""
    return jnp.where(z > 0, jnp.log1p(z) * z, jnp.expm1(z) * jnp.cos(2 * z))


def activations(net: nn.Module, x: jax.Array) -> jax.Array:
    """Sine, squared ReLU and an unnamed activation, one after another."""
    for number, f in enumerate((jnp.sin, lambda z: jnp.square(nn.relu(z)), unnamed)):
        x = f(nn.Dense(256, name=f"layer{number}")(x))
    return nn.Dense(VOCAB, name="head")(x)


def long(seed: int) -> tuple[jax.Array]:
    from measure import normal

    return (normal(seed, (8, 40, 96)),)


BRANCHES = 2 * LAYERS
CASES = {
    "t5": network(t5, two_texts, near=2.5, additions=3 * LAYERS, slow=True),
    "parallel_fused": network(language_model(parallel), text, additions=LAYERS, slow=True),
    "sandwich": network(language_model(sandwich), text, scalable=False),
    "query_key_norm": network(language_model(query_key_norm), text, additions=BRANCHES),
    "deep_norm": network(language_model(deep_norm), text, additions=1, scalable=False),
    "granite": network(language_model(granite, 12.0), text, additions=BRANCHES, slow=True),
    "rezero": network(language_model(rezero), text, additions=None),
    "layer_scale": network(language_model(layer_scale), text, additions=BRANCHES),
    "swiglu": network(language_model(gated(nn.silu)), text, additions=BRANCHES, slow=True),
    "geglu": network(language_model(gated(nn.gelu)), text, additions=BRANCHES),
    "squared_relu": network(language_model(squared_relu), text, additions=BRANCHES, slow=True),
    "soft_capped": network(soft_capped, text, additions=BRANCHES),
    "linear_attention": network(
        language_model(linear_attention), text, near=2.5, additions=4, slow=True
    ),
    "attention_sink": network(language_model(attention_sink), text, additions=4, slow=True),
    "latent_queries": network(latent_queries, long, near=2.5, additions=4, slow=True),
    "low_rank": network(low_rank, text, additions=4, slow=True),
    "activations": network(activations, vectors),
}
