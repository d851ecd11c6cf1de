"""The transformers that are compared, with Flax's default initializers everywhere."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

HEADS = 4


class Block(nn.Module):
    """Attention and a GELU layer, each added to the residual stream.

    Arguments:
        width: size d of the stream.
        post_norm: whether the sum is normalized, instead of what the branch reads.
    """

    width: int
    post_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        def attention(h: jax.Array) -> jax.Array:
            return nn.MultiHeadDotProductAttention(HEADS, name="attention")(h, mask=mask)

        def mlp(h: jax.Array) -> jax.Array:
            h = nn.gelu(nn.Dense(4 * self.width, name="mlp_in")(h))
            return nn.Dense(self.width, name="mlp_out")(h)

        for branch, name in ((attention, "attention_norm"), (mlp, "mlp_norm")):
            norm = nn.LayerNorm(name=name)
            x = norm(x + branch(x)) if self.post_norm else x + branch(norm(x))
        return x


class GPT(nn.Module):
    """A language model: pre-LN as in GPT-2, or post-LN as in the first transformer.

    The post-LN model multiplies the looked-up rows by √d and adds sinusoids; the pre-LN model adds
    a table of positions and normalizes the stream at its end.

    Arguments:
        vocab: number of tokens V.
        width: size d of the residual stream.
        layers: number of blocks.
        tied: whether the table is the output layer too.
        post_norm: whether the blocks are post-LN.
    """

    vocab: int
    width: int
    layers: int
    tied: bool
    post_norm: bool

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = nn.Embed(self.vocab, self.width, name="tokens")
        window = tokens.shape[-1]
        x = table(tokens)
        if self.post_norm:
            x = x * self.width**0.5 + sinusoids(window, self.width)
        else:
            x = x + nn.Embed(window, self.width, name="positions")(jnp.arange(window))
        mask = nn.make_causal_mask(tokens)
        for number in range(self.layers):
            x = Block(self.width, self.post_norm, name=f"block_{number}")(x, mask)
        if not self.post_norm:
            x = nn.LayerNorm(name="norm")(x)
        return table.attend(x) if self.tied else nn.Dense(self.vocab, False, name="head")(x)


class ViT(nn.Module):
    """A pre-LN vision transformer that averages its patches.

    Arguments:
        classes: number of classes.
        width: size d of the residual stream.
        layers: number of blocks.
        patch: side of a patch in pixels.
    """

    classes: int
    width: int
    layers: int
    patch: int = 4

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        side = (self.patch, self.patch)
        x = nn.Conv(self.width, side, strides=side, padding="VALID", name="patches")(images)
        x = jnp.reshape(x, (len(x), -1, self.width))
        small = nn.initializers.normal(0.02)
        x = x + self.param("positions", small, (x.shape[1], self.width))
        for number in range(self.layers):
            x = Block(self.width, name=f"block_{number}")(x)
        return nn.Dense(self.classes, name="head")(nn.LayerNorm(name="norm")(x).mean(axis=1))


def sinusoids(window: int, width: int) -> jax.Array:
    """Sines and cosines of the position, one wavelength a pair of features: [window, width]."""
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(window)[:, None] * rates
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), jnp.float32)
