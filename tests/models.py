"""Linen models that the tests initialize: tied language models, transformers, MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

VOCAB = 2_000
LENGTH = 32

Scale = Callable[[jax.Array, int], jax.Array]


def keep(x: jax.Array, d: int) -> jax.Array:
    """No factor."""
    return x


class Net(nn.Module):
    """A model written as one function of the module and its inputs."""

    body: Callable[..., Any]

    @nn.compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


class Block(nn.Module):
    """Pre-LN transformer block with Flax's own attention, biases included."""

    heads: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        d = x.shape[-1]
        attention = nn.MultiHeadDotProductAttention(self.heads, **types)
        x = x + attention(nn.LayerNorm(**types)(x), mask=mask)
        h = nn.gelu(nn.Dense(4 * d, **types)(nn.LayerNorm(**types)(x)))
        return x + nn.Dense(d, **types)(h)


class FusedBlock(nn.Module):
    """Pre-LN transformer block with one projection for query, key and value, no biases."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        batch, length, d = x.shape
        qkv = nn.Dense(3 * d, use_bias=False, name="qkv")(nn.LayerNorm()(x))
        q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, self.heads, -1), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        weights = nn.softmax(jnp.where(mask, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, d)
        x = x + nn.Dense(d, use_bias=False, name="proj")(mixed)
        h = nn.gelu(nn.Dense(4 * d, use_bias=False, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(d, use_bias=False, name="down")(h)


class TiedLM(nn.Module):
    """Language model whose table is the output layer, with a configurable forward pass.

    Arguments:
        blocks: number of transformer blocks; 0 for none.
        lookup: factor on the looked-up rows.
        before: factor on what the readout reads.
        after: what is done to the logits.
        read: spelling of lookup and readout, `"untied"` for an output layer of its own.
        factor: where a scalar that multiplies the logits is kept: `"param"` or `"collection"`.
        positions: learned positions: `"embed"`, `"param"`, or none.
        bias: whether a zero bias is added to the logits.
        embedding_init: how the table is drawn.
    """

    d: int
    blocks: int = 0
    vocab: int = VOCAB
    lookup: Scale = keep
    before: Scale = keep
    after: Scale = keep
    read: str = "attend"
    factor: str = ""
    positions: str = ""
    bias: bool = False
    block: type[nn.Module] = Block
    embedding_init: Callable[..., Any] = nn.linear.default_embed_init
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, idx: jax.Array) -> jax.Array:
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        look_up, read_out = self.table(types)
        x = self.lookup(look_up(idx), self.d)
        self.sow("intermediates", "arrival", x)
        x = x + self.learned_positions(idx, types) if self.positions else x
        mask = nn.make_causal_mask(idx, dtype=bool)
        for _ in range(self.blocks):
            x = self.block(max(self.d // 64, 2))(x, mask)
            self.sow("intermediates", "stream", x)
        h = self.before(nn.LayerNorm(**types)(x), self.d)
        logits = read_out(h)
        if self.factor == "param":
            logits = logits * self.param("scale", nn.initializers.constant(self.d**-0.5), ())
        elif self.factor == "collection":
            scale = self.variable("constants", "scale", lambda: jnp.float32(self.d**-0.5))
            logits = logits * scale.value
        if self.bias:
            logits = logits + self.param("bias", nn.initializers.zeros, (self.vocab,))
        return self.after(logits, self.d)

    def learned_positions(self, idx: jax.Array, types: dict[str, Any]) -> jax.Array:
        if self.positions == "embed":
            table = nn.Embed(2 * LENGTH, self.d, name="positions", **types)
            return table(jnp.arange(idx.shape[-1]))
        shape = (2 * LENGTH, self.d)
        return self.param("positions", nn.initializers.normal(0.02), shape)[: idx.shape[-1]]

    def table(self, types: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The lookup and the readout, as the field `read` spells them."""
        if self.read in ("take", "index", "one_hot"):
            shape = (self.vocab, self.d)
            table = self.param("table", self.embedding_init, shape, self.param_dtype)
            look_up = {
                "take": lambda idx: jnp.take(table, idx, axis=0),
                "index": lambda idx: table[idx],
                "one_hot": lambda idx: nn.one_hot(idx, self.vocab, dtype=table.dtype) @ table,
            }[self.read]
            return look_up, lambda h: h @ table.T
        emb = nn.Embed(self.vocab, self.d, embedding_init=self.embedding_init, name="emb", **types)
        # `embedding` is set up on first access.
        read_out = {
            "attend": emb.attend,
            "matmul": lambda h: h @ emb.embedding.T,
            "einsum": lambda h: jnp.einsum("btd,vd->btv", h, emb.embedding),
            "dense": lambda h: nn.Dense(self.vocab, use_bias=False, parent=None).apply(
                {"params": {"kernel": emb.embedding.T}}, h
            ),
            "untied": lambda h: nn.Dense(self.vocab, use_bias=False, name="head", **types)(h),
        }[self.read]
        return emb, read_out


class ReluMLP(nn.Module):
    """Dense layers with ReLU between them, no norm."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers - 1):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.width)(x)


class ResidualMLP(nn.Module):
    """Residual branches of two Dense layers on a stream that is never normalized."""

    width: int
    layers: int
    last_init: Callable[..., Any] = nn.linear.default_kernel_init

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(self.width, name="stem")(x)
        self.sow("intermediates", "stream", x)
        for layer in range(self.layers):
            h = nn.relu(nn.Dense(self.width, name=f"up{layer}")(x))
            x = x + nn.Dense(self.width, kernel_init=self.last_init, name=f"down{layer}")(h)
            self.sow("intermediates", "stream", x)
        return nn.Dense(self.width, name="head")(x)
