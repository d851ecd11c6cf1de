"""Lifted transforms: scan over layers, remat, jit, vmap, while, cond, switch and their mixtures."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import HEADS, OUT, VOCAB, Case, D, network, text, vectors

LAYERS = 4


class Block(nn.Module):
    """A pre-LN transformer block in the form that `nn.scan` wants."""

    d: int = D
    last_init: Any = nn.linear.default_kernel_init

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> tuple[jax.Array, None]:
        attention = nn.MultiHeadDotProductAttention(HEADS, name="attention")
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        h = nn.gelu(nn.Dense(4 * self.d, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(self.d, name="down", kernel_init=self.last_init)(h), None


class Stack(nn.Module):
    """A language model of blocks made by a lifted transform."""

    block: Any = Block
    layers: int = LAYERS
    per_layer: bool = True

    @nn.compact
    def __call__(self, idx: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, D, name="emb")(idx)
        mask = nn.make_causal_mask(idx, dtype=bool)
        kinds: dict[str, Any] = (
            {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            if self.per_layer
            else {"variable_broadcast": "params", "split_rngs": {"params": False}}
        )
        blocks = nn.scan(self.block, length=self.layers, in_axes=nn.broadcast, **kinds)
        x, _ = blocks(name="blocks")(x, mask)
        return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def depth_dependent(key: Any, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
    return 0.02 * jax.random.normal(key, shape, dtype)


class DepthScaled(nn.Module):
    """One stacked leaf whose layers are drawn at different scales."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def drawn(key: Any, shape: Any) -> jax.Array:
            scales = 0.02 / jnp.sqrt(2 * (jnp.arange(shape[0], dtype=jnp.float32) + 1))
            return scales[:, None, None] * jax.random.normal(key, shape)

        up = self.param("up", drawn, (LAYERS, D, 2 * D))
        down = self.param("down", drawn, (LAYERS, 2 * D, D))

        def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            return x + jax.nn.relu(x @ weights[0]) @ weights[1], None

        x, _ = jax.lax.scan(layer, x, (up, down))
        return nn.Dense(OUT, name="head")(x)


class MLPBlock(nn.Module):
    """A residual branch of two dense layers on a normalized stream."""

    d: int = D

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.relu(nn.Dense(2 * self.d, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(self.d, name="down")(h)


def rematerialized(net: nn.Module, idx: jax.Array) -> jax.Array:
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    mask = nn.make_causal_mask(idx, dtype=bool)
    for layer in range(2):
        x, _ = nn.remat(Block)(name=f"block{layer}")(x, mask)
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def jitted(net: nn.Module, x: jax.Array) -> jax.Array:
    for layer in range(4):
        x = nn.jit(MLPBlock)(name=f"block{layer}")(x)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def members(net: nn.Module, x: jax.Array) -> jax.Array:
    """An ensemble: one stacked leaf a layer, the members side by side."""

    class Member(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.Dense(OUT)(nn.relu(nn.Dense(192)(x)))

    ensemble = nn.vmap(
        Member, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=5
    )
    return ensemble()(x)


def heads_by_vmap(net: nn.Module, x: jax.Array) -> jax.Array:
    """Parallel heads made by vmap, added to the stream through one projection."""
    head = nn.vmap(
        nn.Dense,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,
        out_axes=-2,
        axis_size=HEADS,
    )
    for layer in range(2):
        h = nn.relu(head(D // HEADS, name=f"heads{layer}")(nn.LayerNorm()(x)))
        x = x + nn.DenseGeneral(D, axis=(-2, -1), name=f"out{layer}")(h)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


class Counting(nn.Module):
    """A while loop that counts, around one shared residual branch."""

    steps: int = 3

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = MLPBlock(name="block")
        if self.is_initializing():
            block(x)
        else:
            _, x = nn.while_loop(
                lambda _, carry: carry[0] < self.steps,
                lambda block, carry: (carry[0] + 1, block(carry[1])),
                block,
                (0, x),
            )
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


class Branching(nn.Module):
    """Two branches, one of them taken according to the data."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wide, deep = nn.Dense(D, name="wide"), nn.Dense(D, name="deep")
        if self.is_initializing():
            wide(x), deep(x)
        h = nn.cond(
            jnp.mean(x) > 0,
            lambda net, x: nn.relu(wide(x)),
            lambda net, x: jnp.tanh(deep(x)),
            self,
            x,
        )
        return nn.Dense(OUT, name="head")(h)


class Switching(nn.Module):
    """Three experts of the whole batch, one chosen by a number of the input."""

    @nn.compact
    def __call__(self, x: jax.Array, task: jax.Array) -> jax.Array:
        experts = [nn.Dense(D, name=f"expert{i}") for i in range(3)]
        if self.is_initializing():
            for expert in experts:
                expert(x)
        branches = [lambda net, x, expert=expert: nn.relu(expert(x)) for expert in experts]
        return nn.Dense(OUT, name="head")(nn.switch(task, branches, self, x))


def stacked_by_hand(net: nn.Module, x: jax.Array) -> jax.Array:
    """fori_loop over layers, the stacked weights read by the loop's index."""
    init = nn.initializers.normal(0.02)
    up = net.param("up", init, (LAYERS, D, 2 * D))
    down = net.param("down", init, (LAYERS, 2 * D, D))

    def layer(i: jax.Array, x: jax.Array) -> jax.Array:
        h = jax.nn.standardize(x)
        return x + jax.nn.gelu(h @ up[i]) @ down[i]

    x = jax.lax.fori_loop(0, LAYERS, layer, x)
    return nn.Dense(OUT, name="head")(jax.nn.standardize(x))


def nested_scans(net: nn.Module, x: jax.Array) -> jax.Array:
    """Two axes of layers: a scan over groups of layers, each a scan of its own."""
    init = nn.initializers.normal(0.02)
    up = net.param("up", init, (2, 3, D, 2 * D))
    down = net.param("down", init, (2, 3, 2 * D, D))

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        return x + jax.nn.relu(jax.nn.standardize(x) @ weights[0]) @ weights[1], None

    def group(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        return jax.checkpoint(lambda x: jax.lax.scan(layer, x, weights)[0])(x), None

    x, _ = jax.lax.scan(group, x, (up, down))
    return nn.Dense(OUT, name="head")(jax.nn.standardize(x))


def zero_last_layers(net: nn.Module, idx: jax.Array) -> jax.Array:
    """The last layer of every branch starts at zero."""
    x = nn.Embed(VOCAB, D, name="emb")(idx)
    for layer in range(2):
        x, _ = Block(last_init=nn.initializers.zeros, name=f"block{layer}")(x)
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -2, 2)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (g,))


@jax.custom_jvp
def soft_sign(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.abs(x))


soft_sign.defjvp(lambda primals, tangents: (soft_sign(*primals), tangents[0]))


def custom_derivatives(net: nn.Module, x: jax.Array) -> jax.Array:
    from jax.ad_checkpoint import checkpoint_name

    x = clipped(nn.Dense(256)(x))
    x = checkpoint_name(soft_sign(nn.Dense(256)(x)), "hidden")
    return nn.Dense(OUT)(x)


def unrolled_items(net: nn.Module, x: jax.Array) -> jax.Array:
    """Stacked weights read layer by layer in a Python loop."""
    init = nn.initializers.normal(0.02)
    up = net.param("up", init, (LAYERS, D, 2 * D))
    down = net.param("down", init, (LAYERS, 2 * D, D))
    for layer in range(LAYERS):
        x = x + jax.nn.relu(x @ up[layer]) @ down[layer]
    return nn.Dense(OUT, name="head")(x)


def mapped(net: nn.Module, x: jax.Array) -> jax.Array:
    """`jax.lax.map` over the batch in chunks."""
    kernel = net.param("kernel", nn.initializers.normal(0.02), (D, 192))
    h = jax.lax.map(lambda chunk: jax.nn.silu(chunk @ kernel), x.reshape(8, -1, D))
    return nn.Dense(OUT, name="head")(h.reshape(x.shape[0], -1))


def with_task(seed: int) -> tuple[jax.Array, jax.Array]:
    return (*vectors(seed), jnp.asarray(seed % 3))


CASES = {
    "scanned_blocks": Case(Stack(), text, additions=2 * LAYERS),
    "scanned_and_rematerialized": Case(
        Stack(nn.remat(Block, prevent_cse=False)), text, additions=2 * LAYERS, slow=True
    ),
    "scanned_shared_block": Case(Stack(layers=3, per_layer=False), text, additions=6, slow=True),
    "scanned_with_depth_dependent_scale": Case(DepthScaled(), vectors, additions=LAYERS),
    "rematerialized": network(rematerialized, text, additions=4, slow=True),
    "jitted": network(jitted, vectors, additions=4, slow=True),
    "ensemble_by_vmap": network(members, vectors),
    "heads_by_vmap": network(heads_by_vmap, vectors, additions=2),
    "while_loop_that_counts": Case(Counting(), vectors, additions=3),
    "cond": Case(Branching(), vectors),
    "switch": Case(Switching(), with_task),
    "fori_loop_over_layers": network(stacked_by_hand, vectors, additions=LAYERS),
    "nested_scans": network(nested_scans, vectors, additions=6),
    "zero_last_layers": network(zero_last_layers, text, additions=2),
    "custom_derivatives": network(custom_derivatives, vectors),
    "items_of_a_stack": network(unrolled_items, vectors, additions=LAYERS),
    "map_over_chunks": network(mapped, vectors),
}
