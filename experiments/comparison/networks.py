"""The networks without attention that are compared, with Flax's default initializers everywhere."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

KERNEL = (3, 3)


class MLP(nn.Module):
    """A deep ReLU network without any norm."""

    classes: int
    width: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.classes, name="head")(x)


class ResNet(nn.Module):
    """A residual network without any norm: half of its blocks before a stride, half behind it."""

    classes: int
    width: int
    blocks: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, KERNEL, strides=2, name="stem")(images)
        for number in range(self.blocks):
            if number == self.blocks // 2:
                x = nn.Conv(self.width, KERNEL, strides=2, name="down")(nn.relu(x))
            h = nn.Conv(self.width, KERNEL)(nn.relu(x))
            x = x + nn.Conv(self.width, KERNEL)(nn.relu(h))
        return nn.Dense(self.classes, name="head")(nn.relu(x).mean(axis=(1, 2)))


class UNet(nn.Module):
    """A U-Net without any norm that answers with a logit a pixel."""

    width: int
    levels: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        def conv(x: jax.Array, strides: int = 1) -> jax.Array:
            return nn.relu(nn.Conv(self.width, KERNEL, strides=strides)(x))

        def up(x: jax.Array) -> jax.Array:
            return nn.relu(nn.ConvTranspose(self.width, (2, 2), strides=(2, 2))(x))

        x = conv(images, 2)
        skips = []
        for _ in range(self.levels):
            x = conv(x)
            skips.append(x)
            x = conv(x, 2)
        x = conv(x)
        for skip in reversed(skips):
            x = conv(jnp.concatenate([up(x), skip], axis=-1))
        return nn.Conv(1, KERNEL, name="head")(up(x))[..., 0]


class LSTM(nn.Module):
    """A language model of stacked LSTM layers."""

    vocab: int
    width: int
    layers: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocab, self.width, name="tokens")(tokens)
        for number in range(self.layers):
            x = nn.RNN(nn.OptimizedLSTMCell(self.width), name=f"layer_{number}")(x)
        return nn.Dense(self.vocab, name="head")(x)


class StateSpace(nn.Module):
    """A language model of selective state-space blocks, as in Mamba.

    Arguments:
        vocab: number of tokens V.
        width: size d of the residual stream; the blocks work in 2d.
        layers: number of blocks.
        states: states a feature.
    """

    vocab: int
    width: int
    layers: int
    states: int = 8

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocab, self.width, name="tokens")(tokens)
        for number in range(self.layers):
            h = nn.RMSNorm(name=f"norm_{number}")(x)
            x = x + Selective(self.width, self.states, name=f"block_{number}")(h)
        return nn.Dense(self.vocab, False, name="head")(nn.RMSNorm(name="norm")(x))


class Selective(nn.Module):
    """A linear recurrence whose step, input and output maps are read from the input itself."""

    width: int
    states: int

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        inner = 2 * self.width
        x, gate = jnp.split(nn.Dense(2 * inner, False, name="in")(h), 2, axis=-1)
        x = nn.silu(nn.Conv(inner, (4,), padding="CAUSAL", feature_group_count=inner)(x))
        slow = nn.initializers.constant(-2.0)
        step = nn.softplus(nn.Dense(inner, bias_init=slow, name="step")(x))
        into = nn.Dense(self.states, False, name="into")(x)
        out = nn.Dense(self.states, False, name="out_of")(x)
        logs = self.param("log_rates", _log_rates, (inner, self.states))
        skip = self.param("skip", nn.initializers.ones, (inner,))

        kept = jnp.exp(-step[..., None] * jnp.exp(logs))  # [batch, time, inner, states]
        given = (step * x)[..., None] * into[:, :, None, :]

        def advance(state: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            kept, given, out = now
            state = kept * state + given
            return state, jnp.sum(state * out[:, None, :], axis=-1)

        by_time = [jnp.moveaxis(array, 1, 0) for array in (kept, given, out)]
        y = jax.lax.scan(advance, jnp.zeros_like(given[:, 0]), tuple(by_time))[1]
        y = (jnp.moveaxis(y, 0, 1) + skip * x) * nn.silu(gate)
        return nn.Dense(self.width, False, name="out")(y)


def _log_rates(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """The logarithms of 1, 2, 3 … as rates of decay, alike for all features."""
    return jnp.broadcast_to(jnp.log(jnp.arange(1.0, shape[1] + 1)), shape)
