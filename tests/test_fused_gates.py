"""Gates that are computed in one product: each has its own part of the bias."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flat_run import measured
from measure import normal, rows
from models import Net

import anyinit

D, OUT = 128, 256


def forget_gate_open(key: Any, shape: tuple[int, ...]) -> jax.Array:
    return jnp.zeros(shape).at[D : 2 * D].set(1.0)


def gates_of(z: jax.Array, spelling: str) -> list[jax.Array]:
    if spelling == "split":
        return jnp.split(z, 4, axis=-1)
    return [z[..., gate * D : (gate + 1) * D] for gate in range(4)]


def lstm(spelling: str) -> Any:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        into = net.param("into", nn.initializers.lecun_normal(), (64, 4 * D))
        back = net.param("back", nn.initializers.orthogonal(), (D, 4 * D))
        bias = net.param("bias", forget_gate_open, (4 * D,))

        def step(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            h, state = carry
            z = x @ into + h @ back + bias
            i, f, g, o = gates_of(z, spelling)
            state = nn.sigmoid(f) * state + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(state)
            return (h, state), h

        zeros = jnp.zeros((x.shape[0], D))
        _, h = jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(x, 0, 1))
        return nn.Dense(OUT, name="head")(h)

    return body


@pytest.mark.parametrize("spelling", ["split", "slices"])
def test_the_forget_gate_sees_its_own_bias(spelling: str) -> None:
    found = measured(Net(lstm(spelling)), lambda seed: (normal(seed, (32, 32, 64)),))
    assert found.difference < 1e-4
    assert found.outputs[0] == pytest.approx(1, abs=0.15)
    assert all(site.ratio < 1.1 for site in found.sites), found.sites
    planned = rows(found.plan)
    assert planned["into"].target == planned["back"].target == 0.5


def test_a_known_vector_is_taken_apart_exactly() -> None:
    """Half of the features are shifted far into a nonlinearity, half not at all."""

    def body(net: nn.Module, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        shift = jnp.asarray(np.repeat([0.0, 3.0], D), jnp.float32)
        first, second = jnp.split(nn.Dense(2 * D, name="up")(x) + shift, 2, axis=-1)
        return nn.Dense(OUT, name="head")(nn.relu(first)), nn.Dense(OUT)(nn.relu(second))

    found = rows(anyinit.flax.plan(Net(body), jnp.zeros((8, D))))
    assert found["head/kernel"].moment_in == pytest.approx(0.5, rel=0.02)
    assert found["Dense_0/kernel"].moment_in == pytest.approx(10, rel=0.02)
