"""A small pre-LN GPT whose embedding table may also be its output layer."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.study.attention import causal_attention


def normal_fan_in(share: float = 1.0) -> nn.initializers.Initializer:
    """Normal initializer of variance share / fan_in."""
    return nn.initializers.variance_scaling(share, "fan_in", "normal")


@jax.checkpoint
def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU, whose derivative is formed anew in the backward pass: that saves memory."""
    return jax.nn.gelu(x, approximate=False)


class Block(nn.Module):
    """Causal attention and a GELU layer, each read through a norm and added to the stream.

    The stream is [tokens, d], so that every product is a matrix times a matrix, backward too.

    Arguments:
        width: size d of the residual stream.
        share: share of the stream's unit variance that each of the two additions gets.
        dtype: in which matrices are multiplied.
    """

    width: int
    share: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, window: int) -> jax.Array:
        heads = max(self.width // 64, 2)

        def dense(features: int, name: str, share: float = 1.0) -> nn.Dense:
            init = normal_fan_in(share)
            return nn.Dense(features, False, self.dtype, kernel_init=init, name=name)

        h = nn.LayerNorm(1e-5, name="attention_norm")(x)
        q, k, v = jnp.split(dense(3 * self.width, "qkv")(h), 3, axis=-1)
        h = causal_attention(q, k, v, window, heads)
        x = x + dense(self.width, "attention_out", self.share)(h)
        h = nn.LayerNorm(1e-5, name="mlp_norm")(x)
        h = gelu(dense(4 * self.width, "mlp_in")(h))
        return x + dense(self.width, "mlp_out", self.share)(h)


class GPT(nn.Module):
    """Language model without positions: the table is all that enters the residual stream.

    Arguments:
        vocab: number of tokens V.
        width: size d of the residual stream.
        layers: number of blocks.
        tied: whether the table is the output layer too; otherwise there is a second one.
        lookup_multiplier: factor on the looked-up rows; may be traced.
        logits_multiplier: factor on the logits; may be traced.
        dtype: in which matrices are multiplied; parameters and the stream stay in float32.
    """

    vocab: int
    width: int
    layers: int
    tied: bool = True
    lookup_multiplier: float | jax.Array = 1.0
    logits_multiplier: float | jax.Array = 1.0
    dtype: Any = jnp.float32

    def setup(self) -> None:
        unit = nn.initializers.normal(1.0)
        self.table = nn.Embed(self.vocab, self.width, embedding_init=unit)
        self.blocks = [
            Block(self.width, 1 / (2 * self.layers), self.dtype) for _ in range(self.layers)
        ]
        self.norm = nn.LayerNorm(1e-5)
        if not self.tied:
            std = nn.initializers.normal(self.width**-0.5)
            self.head = self.param("head", std, (self.vocab, self.width))

    def hidden(self, tokens: jax.Array) -> jax.Array:
        """What the output layer multiplies, logits multiplier included: [tokens, d]."""
        x = self.table(tokens.reshape(-1)) * self.lookup_multiplier
        for block in self.blocks:
            x = block(x, tokens.shape[-1])
        return jnp.multiply(self.norm(x), self.logits_multiplier)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of the next token."""
        output = self.table.embedding if self.tied else self.head
        logits = jnp.dot(self.hidden(tokens), jnp.transpose(output))
        return jnp.reshape(logits, (*tokens.shape, self.vocab))
