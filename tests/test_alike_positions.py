"""What positions, steps and uses of one weight have in common."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flat_run import measured
from measure import normal, rows
from models import Net

import anyinit.flax
from anyinit._propagate import twins
from anyinit._propagate.pooling import covariance, with_covariance
from anyinit._propagate.signal import complex_atom, mean_and_variance, moment, normal_atom

D, OUT = 128, 256

Norm = Callable[[jax.Array], jax.Array]


def factor_at_each_use(net: nn.Module, x: jax.Array) -> jax.Array:
    """A new literal at every use: still one weight."""
    kernel = net.param("kernel", nn.initializers.normal(0.02), (D, D))
    for _ in range(3):
        x = x + x @ (2.0 * kernel)
    return nn.Dense(OUT, name="head")(x)


def mean_of_many_positions(net: nn.Module, x: jax.Array) -> jax.Array:
    """Nothing in common: a mean over n positions leaves 1/n, whatever the samples' noise."""
    x = nn.Conv(D, (3, 3), padding="CIRCULAR")(x)
    h = nn.LayerNorm()(x)
    h = jnp.cos(nn.Dense(D)(h)) * nn.Dense(D)(h)
    return nn.Dense(OUT, name="head")(jnp.mean(x + nn.Dense(D)(h), (1, 2)))


def drawn_bias_before_a_mean(net: nn.Module, x: jax.Array) -> jax.Array:
    """A bias is the same at every position: a mean over positions keeps it whole."""
    x = nn.Dense(D, bias_init=nn.initializers.normal(0.3))(x)
    return nn.Dense(OUT, name="head")(jnp.mean(x, (1, 2)))


def dropout_before_a_mean(net: nn.Module, x: jax.Array) -> jax.Array:
    """Each position has a mask of its own: what all positions have in common stays."""
    x = nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(D)(x)))
    return nn.Dense(OUT, name="head")(jnp.mean(x, axis=1))


def mean_over_a_loop(net: nn.Module, x: jax.Array) -> jax.Array:
    """Successive steps of a recurrent network are alike."""
    states = nn.RNN(nn.OptimizedLSTMCell(D))(x)
    return nn.Dense(OUT, name="head")(jnp.mean(states, axis=1))


def mean_behind_attention(sign: float) -> Callable[..., jax.Array]:
    """What attention averages is alike at all positions, by so much as it averages."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.Dense(D)(x)
        for _ in range(2):
            for branch in (nn.MultiHeadDotProductAttention(4), feed_forward):
                change = branch(nn.LayerNorm()(x))
                x = x + change if sign > 0 else x - change
        return nn.Dense(OUT, name="head")(jnp.mean(nn.LayerNorm()(x), axis=1))

    return body


def feed_forward(x: jax.Array) -> jax.Array:
    return nn.Dense(D)(nn.gelu(nn.Dense(4 * D)(x)))


def complex_sums(net: nn.Module, x: jax.Array) -> jax.Array:
    """Complex signals have a covariance too."""
    left, right = (jnp.fft.fft(nn.relu(nn.Dense(D)(x))) / jnp.sqrt(D) for _ in range(2))
    return nn.Dense(OUT, name="head")(jnp.mean(jnp.abs(left - right), axis=1))


def mixer(first: bool) -> Callable[..., jax.Array]:
    """Weights along the steps, then along the features; the mean over the steps is read out."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.Dense(D)(x) if first else x
        steps = x.shape[1]
        for _ in range(2):
            y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
            x = x + jnp.swapaxes(nn.Dense(steps)(nn.gelu(nn.Dense(2 * steps)(y))), 1, 2)
            x = x + nn.Dense(D)(nn.gelu(nn.Dense(4 * D)(nn.LayerNorm()(x))))
        return nn.Dense(OUT, name="head")(jnp.mean(nn.LayerNorm()(x), axis=1))

    return body


def steps_with_a_mean(cell: type[nn.RNNCellBase]) -> Callable[..., jax.Array]:
    """After a function with a mean the steps of a sequence have a common part."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = jnp.cos(nn.Dense(D)(x))
        return nn.Dense(OUT, name="head")(nn.RNN(cell(D))(nn.Dense(D)(x)))

    return body


def normed_between_loops(cell: type[nn.RNNCellBase], norm: Norm) -> Callable[..., jax.Array]:
    """Successive steps are alike, behind a norm too; the second loop adds up what they share."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        states = norm(nn.RNN(cell(D))(x))
        return nn.Dense(OUT, name="head")(nn.RNN(cell(D))(states)[:, -1])

    return body


def normed_between_loops_in_python(net: nn.Module, x: jax.Array) -> jax.Array:
    for layer in range(2):
        cell, states = nn.OptimizedLSTMCell(D, name=f"cell{layer}"), []
        carry = cell.initialize_carry(jax.random.key(0), x[:, 0].shape)
        for step in range(x.shape[1]):
            carry, h = cell(carry, x[:, step])
            states.append(h)
        x = nn.LayerNorm()(jnp.stack(states, axis=1)) if layer == 0 else states[-1]
    return nn.Dense(OUT, name="head")(x)


def shifted_steps(net: nn.Module, x: jax.Array) -> jax.Array:
    """Each step minus the one before: what they have in common drops out."""
    x = nn.Dense(D)(nn.relu(nn.Dense(D)(x)))
    change = x[:, 1:] - x[:, :-1]
    return nn.Dense(OUT, name="head")(jnp.max(change, axis=1))


def token_shift(net: nn.Module, x: jax.Array) -> jax.Array:
    """A step mixed with the one before: padded on one side, cut off on the other."""
    before = jax.lax.pad(x, 0.0, ((0, 0, 0), (1, -1, 0), (0, 0, 0)))
    return nn.Dense(OUT, name="head")(nn.relu(nn.Dense(D)(0.5 * x + 0.5 * before)))


CASES: dict[str, tuple[Callable[..., jax.Array], tuple[int, ...]]] = {
    "factor_at_each_use": (factor_at_each_use, (64, D)),
    "mean_of_many_positions": (mean_of_many_positions, (8, 8, 8, 3)),
    "drawn_bias_before_a_mean": (drawn_bias_before_a_mean, (8, 8, 8, 3)),
    "steps_of_a_gru": (steps_with_a_mean(nn.GRUCell), (16, 8, D)),
    "steps_of_an_lstm": (steps_with_a_mean(nn.OptimizedLSTMCell), (16, 24, D)),
    "dropout_before_a_mean": (dropout_before_a_mean, (16, 24, D)),
    "lstm_norm_lstm": (
        normed_between_loops(nn.OptimizedLSTMCell, lambda x: nn.LayerNorm()(x)),
        (16, 24, D),
    ),
    "gru_norm_gru": (normed_between_loops(nn.GRUCell, lambda x: nn.LayerNorm()(x)), (16, 24, D)),
    "lstm_batch_norm_lstm": (
        normed_between_loops(nn.OptimizedLSTMCell, lambda x: nn.BatchNorm(False)(x)),
        (16, 24, D),
    ),
    "lstm_norm_lstm_in_python": (normed_between_loops_in_python, (16, 12, D)),
    "mean_over_a_loop": (mean_over_a_loop, (16, 32, D)),
    "mean_behind_attention": (mean_behind_attention(1.0), (16, 24, D)),
    "mean_behind_attention_taken_off": (mean_behind_attention(-1.0), (16, 24, D)),
    "complex_sums": (complex_sums, (16, 24, D)),
    "mixer": (mixer(first=True), (16, 24, D)),
    "mixer_of_inputs": (mixer(first=False), (16, 24, D)),
    "token_shift": (token_shift, (16, 24, D)),
    "shifted_steps": (shifted_steps, (16, 24, D)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_and_sites_are_as_planned(name: str) -> None:
    body, shape = CASES[name]
    found = measured(Net(body), lambda seed: (normal(seed, shape),))
    assert found.outputs[0] == pytest.approx(1, abs=0.2)
    assert all(site.ratio < 1.25 for site in found.sites), found.sites


def test_a_weight_with_a_factor_adds_in_step_with_itself() -> None:
    body, shape = CASES["factor_at_each_use"]
    found = measured(Net(body), lambda seed: (normal(seed, shape),))
    assert rows(found.plan)["kernel"].target == pytest.approx(1 / 9 / 2**2)


@pytest.mark.parametrize("wanted", [0.0, 0.05, -0.3])
def test_samples_get_the_covariance_wanted_and_keep_mean_and_variance(wanted: float) -> None:
    here, there = 1.0 + normal_atom(1), 2.0 - 3.0 * normal_atom(2)
    found = with_covariance(here, there, wanted)
    assert covariance(here, found) == pytest.approx(wanted, abs=1e-12)
    assert mean_and_variance(found) == pytest.approx(mean_and_variance(there))


def test_complex_samples_get_the_covariance_wanted() -> None:
    here, there = complex_atom(1), complex_atom(2)
    found = with_covariance(here, there, 0.2)
    assert covariance(here, found) == pytest.approx(0.2)
    assert moment(found) == pytest.approx(moment(there))


def test_averages_of_complex_signals_can_be_planned() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        values = jax.lax.complex(nn.Dense(D)(x), nn.Dense(D)(x))
        mixed = values + jax.nn.softmax(nn.Dense(24)(x)).astype(values.dtype) @ values
        return nn.Dense(OUT, name="head")(jnp.mean(jnp.abs(mixed), axis=1))

    plan = anyinit.flax.plan(Net(body), normal(0, (16, 24, D)))
    assert rows(plan)["head/kernel"].moment_in > 0


@pytest.mark.parametrize("unusual", [np.inf, np.nan, 1e200])
def test_samples_that_have_no_covariance_stay_as_they_are(unusual: float) -> None:
    here, there = normal_atom(1).copy(), normal_atom(2).copy()
    here[0] = there[1] = unusual
    np.testing.assert_array_equal(with_covariance(here, there, covariance(here, there)), there)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_chance_does_not_add_to_the_correlation_of_sums(
    sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever numbers the other position draws, the same share of a sum is common to both."""
    model, x = Net(mean_behind_attention(sign)), normal(0, (16, 24, D))
    found = []
    for key in range(1000, 1012):
        monkeypatch.setattr(twins, "_OTHER", key)
        found.append(rows(anyinit.flax.plan(model, x))["head/kernel"].moment_in)
    assert np.std(found) < 0.07 * np.mean(found)
