"""A weight that is met again, transposed, hands back a share of what entered it."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from breadth_case import OUT, D, network, vectors
from flat_run import measured

INIT = nn.initializers.normal(0.02)
WIDE = 2 * D


def autoencoder(net: nn.Module, x: jax.Array) -> jax.Array:
    kernel = net.param("kernel", INIT, (D, WIDE))
    return nn.relu(x @ kernel) @ kernel.T


def linear_autoencoder(net: nn.Module, x: jax.Array) -> jax.Array:
    kernel = net.param("kernel", INIT, (D, WIDE))
    return jnp.einsum("bm,dm->bd", x @ kernel, kernel)


def odd_function(net: nn.Module, x: jax.Array) -> jax.Array:
    """The sign of the function's slope is that of what is handed back."""
    kernel = net.param("kernel", INIT, (D, WIDE))
    return x - jnp.tanh(-(x @ kernel)) @ (0.5 * kernel).T


def even_function(net: nn.Module, x: jax.Array) -> jax.Array:
    """A function without a slope on average hands nothing back."""
    kernel = net.param("kernel", INIT, (D, WIDE))
    return jnp.abs(x @ kernel) @ kernel.T


def deep_autoencoder(net: nn.Module, x: jax.Array) -> jax.Array:
    """The decoder mirrors two layers."""
    outer, inner = net.param("outer", INIT, (D, WIDE)), net.param("inner", INIT, (WIDE, 128))
    code = nn.relu(nn.relu(x @ outer) @ inner)
    return nn.relu(code @ inner.T) @ outer.T


def through_attend(net: nn.Module, x: jax.Array) -> jax.Array:
    table = nn.Embed(WIDE, D, name="table")
    return nn.gelu(table.attend(x)) @ table.embedding


def boltzmann_steps(net: nn.Module, x: jax.Array) -> jax.Array:
    """Visible to hidden and back, twice."""
    kernel = net.param("kernel", INIT, (D, WIDE))
    for _ in range(2):
        x = jnp.tanh(jnp.tanh(x @ kernel) @ kernel.T)
    return nn.Dense(OUT, name="head")(x)


def scanned(net: nn.Module, x: jax.Array) -> jax.Array:
    """Tied layers in a stack, taken apart by a scan."""
    kernels = net.param("kernels", nn.initializers.normal(0.02, jnp.float32), (3, D, WIDE))

    def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.standardize(x + nn.relu(x @ kernel) @ kernel.T), None

    x, _ = jax.lax.scan(layer, x, kernels)
    return nn.Dense(OUT, name="head")(x)


def not_the_same_numbers(net: nn.Module, x: jax.Array) -> jax.Array:
    """Another part of the same leaf is another weight."""
    kernel = net.param("kernel", INIT, (D, 2 * WIDE))
    encoder, decoder = jnp.split(kernel, 2, axis=1)
    return nn.relu(x @ encoder) @ decoder.T


MODELS: list[Callable[..., jax.Array]] = [
    autoencoder,
    linear_autoencoder,
    odd_function,
    even_function,
    deep_autoencoder,
    through_attend,
    boltzmann_steps,
    scanned,
    not_the_same_numbers,
]


@pytest.mark.parametrize("function", MODELS, ids=lambda function: function.__name__)
def test_sites_are_as_predicted(function: Callable[..., jax.Array]) -> None:
    case = network(function, vectors)
    found = measured(case.model, case.inputs, seeds=8)
    wrong = [site for site in found.sites if site.ratio > 1.15]
    assert not wrong, wrong


def symmetric_weight(net: nn.Module, x: jax.Array) -> jax.Array:
    """W + Wᵀ adds different numbers."""
    kernel = net.param("kernel", INIT, (D, D))
    return nn.Dense(OUT, name="head")(nn.relu(x @ (kernel + kernel.T)))


def antisymmetric_weight(net: nn.Module, x: jax.Array) -> jax.Array:
    """W − Wᵀ is not zero."""
    kernel = net.param("kernel", INIT, (D, D))
    for _ in range(4):
        x = x + 0.1 * jnp.tanh(x @ (kernel - jnp.transpose(kernel)))
    return nn.Dense(OUT, name="head")(x)


def symmetric_signal(net: nn.Module, x: jax.Array) -> jax.Array:
    """A pair representation, made symmetric."""
    pairs = nn.Dense(256)(x).reshape(-1, 16, 16)
    pairs = pairs + jnp.swapaxes(pairs, 1, 2)
    return nn.Dense(OUT, name="head")(nn.relu(pairs.reshape(-1, 256)))


def there_and_back(net: nn.Module, x: jax.Array) -> jax.Array:
    """Transposed twice, a signal is in step with itself again."""
    pairs = nn.Dense(256)(x).reshape(-1, 16, 16)
    pairs = pairs + jnp.swapaxes(jnp.swapaxes(pairs, 1, 2), 1, 2)
    return nn.Dense(OUT, name="head")(nn.relu(pairs.reshape(-1, 256)))


@pytest.mark.parametrize(
    "function",
    [symmetric_weight, antisymmetric_weight, symmetric_signal, there_and_back],
    ids=lambda function: function.__name__,
)
def test_sum_of_a_square_array_and_its_transpose(function: Callable[..., jax.Array]) -> None:
    found = measured(network(function, vectors).model, vectors)
    assert found.outputs[0] == pytest.approx(1, abs=0.25)
    assert all(site.measured > 0 and site.ratio < 1.2 for site in found.sites), found.sites
