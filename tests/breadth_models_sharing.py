"""One weight in several places: layers called again, looped blocks, towers, shared tables."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import HEADS, OUT, VOCAB, D, network, text, two_texts, vectors
from breadth_models_lifted import MLPBlock
from measure import normal, tokens


def called_four_times(net: nn.Module, x: jax.Array) -> jax.Array:
    layer = nn.Dense(D, name="layer")
    for _ in range(4):
        x = nn.relu(layer(x))
    return nn.Dense(OUT, name="head")(x)


def called_on_unlike_inputs(net: nn.Module, x: jax.Array) -> jax.Array:
    """One layer reads a normalized signal, a sparse one and a large one."""
    layer = nn.Dense(D, name="layer")
    parts = [nn.relu(layer(y)) for y in (x, nn.relu(x), jax.nn.standardize(x**3))]
    return nn.Dense(OUT, name="head")(jnp.concatenate(parts, -1))


def block_three_times(net: nn.Module, idx: jax.Array) -> jax.Array:
    """ALBERT: one block, called three times."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    attention = nn.MultiHeadDotProductAttention(HEADS, name="attention")
    up, down = nn.Dense(4 * D, name="up"), nn.Dense(D, name="down")
    for _ in range(3):
        x = x + attention(nn.LayerNorm()(x))
        x = x + down(nn.gelu(up(nn.LayerNorm()(x))))
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def looped_block(net: nn.Module, x: jax.Array) -> jax.Array:
    """A universal transformer: one branch, and the input added again at each step."""
    block, start = MLPBlock(name="block"), x
    for _ in range(3):
        x = block(x)
        x = x + 0.1 * start
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def middle_cycle(net: nn.Module, x: jax.Array) -> jax.Array:
    """Blocks of their own at both ends, one shared block three times between them."""
    x = MLPBlock(name="first")(x)
    shared = MLPBlock(name="shared")
    for _ in range(3):
        x = shared(x)
    x = MLPBlock(name="last")(x)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def siamese(net: nn.Module, left: jax.Array, right: jax.Array) -> jax.Array:
    """Both inputs go through the same layers; the head reads both, and their difference."""
    first, second = nn.Dense(256, name="first"), nn.Dense(D, name="second")
    a, b = (second(nn.relu(first(x))) for x in (left, right))
    return nn.Dense(OUT, name="head")(nn.relu(jnp.concatenate([a, b, jnp.abs(a - b)], -1)))


def two_towers(net: nn.Module, left: jax.Array, right: jax.Array) -> jax.Array:
    """Logits of every pair, from two towers of shared weights."""
    first, second = nn.Dense(256, name="first"), nn.Dense(D, name="second")
    a, b = (second(nn.relu(first(x))) for x in (left, right))
    return a @ b.T


def contrastive(net: nn.Module, left: jax.Array, right: jax.Array) -> jax.Array:
    """CLIP: two towers, unit vectors, a learned temperature."""
    a = nn.Dense(D, name="image")(nn.relu(nn.Dense(256, name="image_up")(left)))
    b = nn.Dense(D, name="text")(nn.relu(nn.Dense(256, name="text_up")(right)))
    a, b = (y / jnp.linalg.norm(y, axis=-1, keepdims=True) for y in (a, b))
    temperature = net.param("temperature", nn.initializers.constant(2.6592), ())
    return a @ b.T * jnp.exp(temperature)


def three_uses_of_a_table(net: nn.Module, source: jax.Array, target: jax.Array) -> jax.Array:
    """One table looked up by encoder and decoder, and read by the head."""
    emb = nn.Embed(VOCAB, D, name="emb")
    memory = MLPBlock(name="encoder")(emb(source))
    x = MLPBlock(name="decoder")(emb(target))
    cross = nn.MultiHeadDotProductAttention(HEADS, name="cross")
    x = x + cross(nn.LayerNorm()(x), nn.LayerNorm()(memory))
    return emb.attend(nn.LayerNorm()(x))


def tied_autoencoder(net: nn.Module, x: jax.Array) -> jax.Array:
    """The decoder's kernel is the encoder's, transposed."""
    kernel = net.param("kernel", nn.initializers.normal(0.02), (D, 2 * D))
    return nn.relu(x @ kernel) @ kernel.T


def shared_head(net: nn.Module, x: jax.Array) -> list[jax.Array]:
    """Early exits: one head reads the stream after each block."""
    head, outputs = nn.Dense(OUT, name="head"), []
    for layer in range(3):
        x = MLPBlock(name=f"block{layer}")(x)
        outputs.append(head(jax.nn.standardize(x)))
    return outputs


def keys_and_values_shared(net: nn.Module, idx: jax.Array) -> jax.Array:
    """Later layers attend to the keys and values of the first (cross-layer sharing)."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    h = nn.LayerNorm()(x)
    k, v = (nn.DenseGeneral((HEADS, D // HEADS), name=name)(h) for name in ("key", "value"))
    for layer in range(3):
        q = nn.DenseGeneral((HEADS, D // HEADS), name=f"query{layer}")(nn.LayerNorm()(x))
        mixed = nn.dot_product_attention(q, k, v)
        x = x + nn.DenseGeneral(D, axis=(-2, -1), name=f"out{layer}")(mixed)
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def recommender(net: nn.Module, users: jax.Array, items: jax.Array) -> jax.Array:
    """Factorization: the product of two looked-up rows, all pairs of the batch."""
    left = nn.Embed(VOCAB, D, name="users")(users)
    right = nn.Embed(VOCAB, D, name="items")(items)
    return left @ right.T


def pairs(seed: int) -> tuple[jax.Array, jax.Array]:
    return normal(seed, (256, D)), normal(seed + 500, (256, D))


def ids(seed: int) -> tuple[jax.Array, jax.Array]:
    return tokens(seed, VOCAB, (256,)), tokens(seed + 500, VOCAB, (256,))


WIDE = (0.5, 2.0)
CASES = {
    "called_four_times": network(called_four_times, vectors),
    "called_on_unlike_inputs": network(called_on_unlike_inputs, vectors),
    "block_three_times": network(block_three_times, text, additions=6),
    "looped_block": network(looped_block, vectors, additions=3, scalable=False),
    "middle_cycle": network(middle_cycle, vectors, additions=5, slow=True),
    "siamese": network(siamese, pairs),
    "two_towers": network(two_towers, pairs, outputs=WIDE),
    "contrastive": network(contrastive, pairs, outputs=None),
    "three_uses_of_a_table": network(three_uses_of_a_table, two_texts, near=2.5, additions=2),
    "tied_autoencoder": network(tied_autoencoder, vectors, outputs=WIDE),
    "early_exits": network(shared_head, vectors, additions=3, outputs=WIDE),
    "keys_and_values_shared": network(keys_and_values_shared, text, additions=3, slow=True),
    "product_of_lookups": network(recommender, ids, outputs=WIDE),
}
