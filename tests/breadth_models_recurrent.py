"""Recurrent networks and state-space blocks, as Flax writes them and as people write them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from breadth_case import OUT, VOCAB, D, network, sequences, text
from measure import normal


def lstm(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.RNN(nn.OptimizedLSTMCell(D), name="rnn")(x)
    return nn.Dense(OUT, name="head")(h)


def lstm_of_separate_gates(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.RNN(nn.LSTMCell(D), name="rnn")(x)
    return nn.Dense(OUT, name="head")(h)


def gru(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.RNN(nn.GRUCell(D), name="rnn")(x)
    return nn.Dense(OUT, name="head")(h)


def minimal_gated(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.RNN(nn.MGUCell(D), name="rnn")(x)
    return nn.Dense(OUT, name="head")(h)


def simple_cell(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.RNN(nn.SimpleCell(D), name="rnn")(x)
    return nn.Dense(OUT, name="head")(h)


def last_state(net: nn.Module, x: jax.Array) -> jax.Array:
    carry, _ = nn.RNN(nn.GRUCell(D), return_carry=True, name="rnn")(x)
    return nn.Dense(OUT, name="head")(carry)


def bidirectional(net: nn.Module, x: jax.Array) -> jax.Array:
    forward, backward = nn.RNN(nn.LSTMCell(D)), nn.RNN(nn.LSTMCell(D))
    return nn.Dense(OUT, name="head")(nn.Bidirectional(forward, backward)(x))


def stacked_lstm(net: nn.Module, x: jax.Array) -> jax.Array:
    for layer in range(2):
        x = nn.RNN(nn.LSTMCell(D), name=f"rnn{layer}")(x)
    return nn.Dense(OUT, name="head")(x)


def tied_lstm(net: nn.Module, idx: jax.Array) -> jax.Array:
    """A language model whose table is the output layer."""
    emb = nn.Embed(VOCAB, D, name="emb")
    h = nn.RNN(nn.LSTMCell(D), name="rnn")(emb(idx))
    return emb.attend(h)


def tied_gru_with_norm(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(VOCAB, D, name="emb")
    h = nn.RNN(nn.GRUCell(D), name="rnn")(emb(idx))
    return emb.attend(nn.LayerNorm()(h))


def cell_by_hand(net: nn.Module, x: jax.Array) -> jax.Array:
    """A `lax.scan` over time whose cell is two matrices and a tanh."""
    init = nn.initializers.normal(0.02)
    into, back = net.param("into", init, (D, D)), net.param("back", init, (D, D))

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ into + h @ back)
        return h, h

    _, h = jax.lax.scan(step, jnp.zeros((x.shape[0], D)), jnp.swapaxes(x, 0, 1))
    return nn.Dense(OUT, name="head")(h)


def cell_with_leak(net: nn.Module, x: jax.Array) -> jax.Array:
    """An echo-state-like cell that keeps 70% of its state; the last one is read."""
    init = nn.initializers.normal(0.02)
    into, back = net.param("into", init, (D, D)), net.param("back", init, (D, D))

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = 0.7 * h + 0.3 * jax.nn.relu(x @ into + h @ back)
        return h, None

    h, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], D)), jnp.swapaxes(x, 0, 1))
    return nn.Dense(OUT, name="head")(h)


def long_sequences(seed: int) -> tuple[jax.Array]:
    """Long against the time in which a leaky state fills."""
    return (normal(seed, (32, 32, D)),)


def recurrence(decay: jax.Array, driven: jax.Array) -> jax.Array:
    """h_t = decay_t · h_{t−1} + driven_t over the second axis, by an associative scan."""

    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(join, (decay, driven), axis=1)[1]


def log_of_positions(key: Any, shape: Any) -> jax.Array:
    return jnp.log(jnp.broadcast_to(jnp.arange(1, shape[-1] + 1, dtype=jnp.float32), shape))


def state_space(net: nn.Module, x: jax.Array) -> jax.Array:
    """A selective state-space block: exp(A_log), softplus(dt), an associative scan."""
    states, inner = 8, 2 * D
    for layer in range(2):
        h = nn.LayerNorm()(x)
        u, gate = jnp.split(nn.Dense(2 * inner, use_bias=False, name=f"into{layer}")(h), 2, -1)
        u = nn.Conv(inner, (4,), padding="CAUSAL", feature_group_count=inner, name=f"conv{layer}")(
            u
        )
        u = nn.silu(u)
        dt = nn.softplus(nn.Dense(inner, name=f"dt{layer}")(u))
        b = nn.Dense(states, use_bias=False, name=f"b{layer}")(u)
        c = nn.Dense(states, use_bias=False, name=f"read{layer}")(u)
        a = -jnp.exp(net.param(f"a_log{layer}", log_of_positions, (inner, states)))
        decay = jnp.exp(dt[..., None] * a)
        driven = (dt * u)[..., None] * b[..., None, :]
        y = jnp.einsum("btds,bts->btd", recurrence(decay, driven), c)
        y = y + u * net.param(f"skip{layer}", nn.initializers.ones, (inner,))
        x = x + nn.Dense(D, use_bias=False, name=f"out{layer}")(y * nn.silu(gate))
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def linear_recurrence(net: nn.Module, x: jax.Array) -> jax.Array:
    """A diagonal recurrence with a learned, drawn decay (LRU, RG-LRU)."""

    def drawn(key: Any, shape: Any) -> jax.Array:
        return jax.random.uniform(key, shape, minval=1.0, maxval=3.0)

    for layer in range(2):
        h = nn.LayerNorm()(x)
        decay = nn.sigmoid(net.param(f"decay{layer}", drawn, (D,)))
        driven = jnp.sqrt(1 - decay**2) * nn.Dense(D, name=f"into{layer}")(h)
        h = recurrence(jnp.broadcast_to(decay, driven.shape), driven)
        gated = h * nn.gelu(nn.Dense(D, name=f"gate{layer}")(x))
        x = x + nn.Dense(D, name=f"out{layer}")(gated)
    return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))


def cumulative_mean(net: nn.Module, x: jax.Array) -> jax.Array:
    """A running mean over time instead of attention, by cumsum."""
    h = nn.relu(nn.Dense(D, name="up")(x))
    h = jnp.cumsum(h, axis=1) / jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    return nn.Dense(OUT, name="head")(h)


def highway(net: nn.Module, x: jax.Array) -> jax.Array:
    """Highway layers: a gate between the branch and the stream."""
    for layer in range(3):
        gate = nn.sigmoid(nn.Dense(D, name=f"gate{layer}")(x))
        x = gate * jnp.tanh(nn.Dense(D, name=f"branch{layer}")(x)) + (1 - gate) * x
    return nn.Dense(OUT, name="head")(x)


CASES = {
    "lstm": network(lstm, sequences),
    "lstm_of_separate_gates": network(lstm_of_separate_gates, sequences, slow=True),
    "gru": network(gru, sequences),
    "minimal_gated": network(minimal_gated, sequences, slow=True),
    "simple_cell": network(simple_cell, sequences),
    "last_state": network(last_state, sequences, slow=True),
    "bidirectional": network(bidirectional, sequences, slow=True),
    "stacked_lstm": network(stacked_lstm, sequences, slow=True),
    "tied_lstm": network(tied_lstm, text, slow=True),
    "tied_gru_with_norm": network(tied_gru_with_norm, text, slow=True),
    "cell_by_hand": network(cell_by_hand, sequences),
    "cell_with_leak": network(cell_with_leak, long_sequences, additions=None, scalable=False),
    "state_space": network(state_space, sequences, near=2.5, additions=2),
    "linear_recurrence": network(linear_recurrence, sequences, near=2.5, additions=2),
    "cumulative_mean": network(cumulative_mean, sequences, near=2.5),
    "highway": network(highway, sequences, scalable=False),
}
