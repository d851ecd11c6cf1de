"""What is taken from, added to or compared at indexed places."""

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

D, OUT, NODES, EDGES, EXPERTS = 128, 256, 64, 256, 4


def edges(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, NODES, (2, EDGES))
    return normal(seed, (NODES, D)), jnp.asarray(ends[0]), jnp.asarray(ends[1])


def mean_over_neighbours(h: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    total = jax.ops.segment_sum(h[senders], receivers, NODES)
    degree = jnp.zeros(NODES).at[receivers].add(1.0)
    return total / jnp.maximum(degree, 1.0)[:, None]


def both_degrees(h: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Divided by the roots of both degrees (a graph convolution)."""
    ones = jnp.ones(EDGES)
    out = 1.0 + jax.ops.segment_sum(ones, senders, NODES)
    into = 1.0 + jax.ops.segment_sum(ones, receivers, NODES)
    weighted = h[senders] * jax.lax.rsqrt(out[senders] * into[receivers])[:, None]
    return jnp.zeros_like(h).at[receivers].add(weighted)


def largest_of_neighbours(h: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    found = jax.ops.segment_max(h[senders], receivers, NODES)
    return jnp.where(jnp.isfinite(found), found, 0.0)


AGGREGATIONS: dict[str, Callable[..., jax.Array]] = {
    f.__name__: f for f in (mean_over_neighbours, both_degrees, largest_of_neighbours)
}


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_sums_over_the_edges_of_a_graph(name: str) -> None:
    def body(net: nn.Module, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        for layer in range(2):
            h = nn.Dense(D, name=f"message{layer}", use_bias=False)(x)
            mixed = AGGREGATIONS[name](h, senders, receivers)
            x = nn.relu(nn.Dense(D, name=f"self{layer}")(x) + mixed)
        return nn.Dense(OUT, name="head")(x)

    found = measured(Net(body), edges)
    assert found.difference < 1e-4
    assert found.outputs[0] == pytest.approx(1, abs=0.4)
    assert all(site.ratio < 2.5 for site in found.sites), found.sites


def test_what_is_added_at_every_place_is_a_branch() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        for layer in range(3):
            branch = nn.Dense(D, name=f"branch{layer}")(nn.LayerNorm()(x))
            x = x.at[...].add(branch)
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(x))

    found = measured(Net(body), lambda seed: (normal(seed, (32, D)),))
    assert found.additions == 3
    assert found.difference < 1e-4
    assert rows(found.plan)["branch1/kernel"].target == pytest.approx(1 / 3)


@pytest.mark.parametrize("among", ["scores", "probabilities"])
def test_an_expert_taken_by_index_is_a_kernel(among: str) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        scores = nn.Dense(EXPERTS, name="router")(nn.LayerNorm()(x))
        shares = nn.softmax(scores)
        best = jnp.argmax(scores if among == "scores" else shares, axis=-1)
        gate = jnp.take_along_axis(shares, best[:, None], axis=-1)
        kernels = net.param("kernels", nn.initializers.normal(0.02), (EXPERTS, D, D))
        h = x + gate * jnp.einsum("bd,bdf->bf", nn.LayerNorm()(x), kernels[best])
        return nn.Dense(OUT, name="head")(nn.LayerNorm()(h))

    found = measured(Net(body), lambda seed: (normal(seed, (128, D)),))
    row = rows(found.plan)["kernels"]
    assert (row.roles, row.fan, row.site) == (("kernel",), D, "residual stream")
    assert row.sigma == pytest.approx(D**-0.5, rel=0.01)
    assert all(site.ratio < 1.15 for site in found.sites), found.sites
