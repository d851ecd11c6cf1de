"""What real models have besides: collections, methods, several inputs, odd weights, callbacks."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import HEADS, OUT, VOCAB, Case, D, network, text, vectors
from measure import normal, tokens


def two_scales_concatenated(net: nn.Module, x: jax.Array) -> jax.Array:
    small, large = 0.01 * nn.relu(nn.Dense(D)(x)), 30 * jnp.tanh(nn.Dense(2 * D)(x))
    return nn.Dense(OUT)(nn.relu(nn.Dense(256)(jnp.concatenate([small, large], -1))))


def relu_after_a_bare_norm(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.LayerNorm(use_scale=False, use_bias=False)(nn.Dense(D)(x)))
    return nn.Dense(OUT)(nn.relu(nn.Dense(256)(h)))


def weight_normed(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.WeightNorm(nn.Dense(256))(x))
    return nn.Dense(OUT)(h)


def spectral_normed(net: nn.Module, x: jax.Array, update: bool) -> jax.Array:
    h = nn.relu(nn.SpectralNorm(nn.Dense(256))(x, update_stats=update))
    return nn.Dense(OUT)(h)


def several_inputs(net: nn.Module, batch: dict[str, jax.Array], scale: float) -> jax.Array:
    """A dict of inputs and a static number."""
    x = nn.Embed(VOCAB, D, name="category")(batch["category"])
    y = nn.Dense(D, name="numbers")(batch["numbers"] * scale)
    return nn.Dense(OUT, name="head")(nn.relu(nn.Dense(256, name="joint")(nn.relu(x) + nn.relu(y))))


class Method(nn.Module):
    """Entered by another method than `__call__`."""

    def setup(self) -> None:
        self.encoder = nn.Dense(D)
        self.decoder = nn.Dense(OUT)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.decode(nn.relu(self.encoder(x)))

    def decode(self, h: jax.Array) -> jax.Array:
        return self.decoder(h)

    def reconstruct(self, x: jax.Array, depth: int) -> jax.Array:
        for _ in range(depth):
            x = nn.relu(self.encoder(x))
        return self.decode(x)


class Cached(nn.Module):
    """One step of autoregressive decoding: keys and values in a cache collection."""

    @nn.compact
    def __call__(self, idx: jax.Array) -> jax.Array:
        x = nn.Embed(VOCAB, D, name="emb")(idx)
        attention = nn.MultiHeadDotProductAttention(HEADS, decode=True, name="attention")
        x = x + attention(nn.LayerNorm()(x))
        return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def sown(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Dense(256)(x))
    net.sow("intermediates", "hidden", h)
    average = net.variable("statistics", "mean", jnp.zeros, (256,))
    average.value = 0.9 * average.value + 0.1 * h.mean(axis=0)
    return nn.Dense(OUT)(h - average.value)


def opaque(net: nn.Module, x: jax.Array) -> jax.Array:
    """A call that the analysis cannot look into."""
    h = nn.Dense(256, name="before")(x)
    shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
    h = jax.pure_callback(lambda h: h[:, ::-1], shape, h, vmap_method="sequential")
    return nn.Dense(OUT, name="after")(h)


def dropout_everywhere(net: nn.Module, idx: jax.Array, train: bool) -> jax.Array:
    drop = nn.Dropout(0.2, deterministic=not train)
    x = drop(nn.Embed(VOCAB, D, name="emb")(idx))
    for layer in range(2):
        attention = nn.MultiHeadDotProductAttention(
            HEADS, dropout_rate=0.1, deterministic=not train, name=f"attention{layer}"
        )
        x = x + drop(attention(nn.LayerNorm()(x)))
        h = nn.gelu(nn.Dense(4 * D, name=f"up{layer}")(nn.LayerNorm()(x)))
        x = x + drop(nn.Dense(D, name=f"down{layer}")(drop(h)))
    return nn.Dense(VOCAB, name="head")(nn.LayerNorm()(x))


def drawn_biases(net: nn.Module, x: jax.Array) -> jax.Array:
    """Biases and gains that are drawn, too."""
    init = nn.initializers.normal(0.3)
    h = nn.relu(nn.Dense(256, bias_init=init)(x))
    h = h * (1 + net.param("gain", init, (256,)))
    return nn.Dense(OUT, bias_init=nn.initializers.zeros)(h)


def graph_network(net: nn.Module, nodes: jax.Array, senders: Any, receivers: Any) -> jax.Array:
    """Messages along edges, summed at the receiving node, normalized by its degree."""
    degree = jax.ops.segment_sum(jnp.ones(receivers.shape), receivers, nodes.shape[0])
    for layer in range(2):
        messages = nn.relu(nn.Dense(D, name=f"message{layer}")(nodes))[senders]
        summed = jax.ops.segment_sum(messages, receivers, nodes.shape[0])
        mean = summed / jnp.maximum(degree, 1)[:, None]
        nodes = nn.relu(
            nn.Dense(D, name=f"self{layer}")(nodes) + nn.Dense(D, name=f"n{layer}")(mean)
        )
    return nn.Dense(OUT, name="head")(nodes)


def hypernetwork(net: nn.Module, x: jax.Array, task: jax.Array) -> jax.Array:
    """A layer whose kernel is computed from another input."""
    kernel = nn.Dense(D * 64, name="makes_kernel")(nn.relu(nn.Dense(64, name="task")(task)))
    h = jnp.einsum("bd,bdf->bf", x, kernel.reshape(-1, D, 64))
    return nn.Dense(OUT, name="head")(nn.relu(h))


def fourier_features(net: nn.Module, x: jax.Array) -> jax.Array:
    """A coordinate network: sine layers with a frequency of 30 on the first (SIREN)."""
    h = jnp.sin(30 * nn.Dense(256, name="first")(x))
    h = jnp.sin(nn.Dense(256, name="second")(h))
    return nn.Dense(OUT, name="head")(h)


def positions_without_label(net: nn.Module, idx: jax.Array) -> jax.Array:
    """A tied table and a learned position table."""
    emb = nn.Embed(VOCAB, D, name="emb")
    x = emb(idx) + nn.Embed(64, D, name="positions")(jnp.arange(idx.shape[1]))
    h = nn.gelu(nn.Dense(4 * D, name="up")(nn.LayerNorm()(x)))
    x = x + nn.Dense(D, name="down")(h)
    return emb.attend(nn.LayerNorm()(x)) / jnp.sqrt(float(D))


def deep_unnormalized(net: nn.Module, x: jax.Array) -> jax.Array:
    """Twelve residual blocks without any norm: 3,948 under the published alternative."""
    for layer in range(12):
        h = nn.relu(nn.Dense(D, name=f"up{layer}")(x))
        x = x + nn.Dense(D, name=f"down{layer}")(h)
    return nn.Dense(OUT, name="head")(x)


def dueling(net: nn.Module, x: jax.Array) -> jax.Array:
    """A value and centred advantages (reinforcement learning)."""
    h = nn.relu(nn.Dense(256, name="hidden")(x))
    advantage = nn.Dense(OUT, name="advantage")(h)
    return nn.Dense(1, name="value")(h) + advantage - advantage.mean(-1, keepdims=True)


def variational(net: nn.Module, x: jax.Array) -> jax.Array:
    """A sampled code between encoder and decoder."""
    h = nn.relu(nn.Dense(256, name="encoder")(x))
    mean, log_variance = nn.Dense(64, name="mean")(h), nn.Dense(64, name="log_variance")(h)
    noise = jax.random.normal(net.make_rng("dropout"), mean.shape)
    z = mean + jnp.exp(0.5 * log_variance) * noise
    return nn.Dense(OUT, name="out")(nn.relu(nn.Dense(256, name="decoder")(z)))


def inputs_by_name(seed: int) -> tuple[dict[str, jax.Array], float]:
    batch = {"category": tokens(seed, VOCAB, (128,)), "numbers": normal(seed, (128, 48))}
    return batch, 0.1


def edges(seed: int) -> tuple[jax.Array, ...]:
    return normal(seed, (64, D)), tokens(seed, 64, (512,)), tokens(seed + 9, 64, (512,))


def with_tasks(seed: int) -> tuple[jax.Array, jax.Array]:
    return normal(seed, (64, D)), normal(seed + 500, (64, 32))


def coordinates(seed: int) -> tuple[jax.Array]:
    return (normal(seed, (256, 3)),)


WIDE = (0.5, 2.0)
CASES = {
    "two_scales_concatenated": network(two_scales_concatenated, vectors),
    "relu_after_a_bare_norm": network(relu_after_a_bare_norm, vectors),
    "weight_norm": network(weight_normed, vectors),
    "spectral_norm": network(
        spectral_normed, vectors, options={"update": True}, outputs=None, slow=True
    ),
    "several_inputs": network(several_inputs, inputs_by_name),
    "another_method": Case(
        Method(), lambda seed: (*vectors(seed), 2), options={"method": "reconstruct"}
    ),
    "cache": Case(Cached(), lambda seed: (tokens(seed, VOCAB, (8, 1)),), near=2.5, additions=1),
    "sown_and_averaged": network(sown, vectors),
    "opaque_call": network(opaque, vectors),
    "dropout_everywhere": network(
        dropout_everywhere, text, options={"train": True}, additions=4, slow=True
    ),
    "drawn_biases": network(drawn_biases, vectors),
    "graph_network": network(graph_network, edges, near=2.5, slow=True),
    "hypernetwork": network(hypernetwork, with_tasks, outputs=WIDE),
    "coordinate_network": network(fourier_features, coordinates, near=2.5),
    "positions_of_a_tied_table": network(positions_without_label, text, additions=1),
    "deep_unnormalized": network(deep_unnormalized, vectors, outputs=WIDE, additions=12),
    "dueling": network(dueling, vectors),
    "variational": network(variational, vectors),
}
