"""What the logits look like before any training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from experiments.study.devices import own_mesh
from experiments.study.initialization import initial_params, without_head
from experiments.study.loss import in_blocks
from experiments.study.protocol import Protocol, Scheme
from experiments.study.shapes import Shape, Traced, shape_of, traced
from experiments.study.step import hidden, output_table, random_windows

NETWORK_SEED, WINDOW_SEED = 1, 0


@dataclasses.dataclass(frozen=True)
class Initial:
    """Before training: the loss, the logits' spread, and the mean logit of the input token."""

    loss: float
    logit_std: float
    own_token: float


def initial(protocol: Protocol, scheme: Scheme, width: int, text: jax.Array) -> Initial:
    """Draw a network and measure it on a few windows of the text."""
    shape = shape_of(protocol, scheme, width)
    params = initial_params(shape, scheme, NETWORK_SEED, own_mesh())
    body, output, numbers = without_head(params), output_table(params), traced(scheme, width)
    fixed = {"shape": dataclasses.replace(shape, tied=True), "protocol": protocol}
    return Initial(*map(float, _measure(body, output, numbers, text, **fixed)))


@functools.partial(jax.jit, static_argnames=("shape", "protocol"))
def _measure(
    params: Any,
    output: jax.Array,
    numbers: Traced,
    text: jax.Array,
    *,
    shape: Shape,
    protocol: Protocol,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Loss, standard deviation and own-token logit, over blocks of rows."""
    key, count = jax.random.key(WINDOW_SEED), protocol.initial_windows
    tokens, targets = random_windows(key, text, count, protocol.window)
    model = shape.model(numbers.lookup, numbers.logits)

    def block(rows: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        h, own, target = rows
        logits = jnp.dot(h, output.T.astype(h.dtype), preferred_element_type=jnp.float32)

        def of(ids: jax.Array) -> jax.Array:
            return jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]

        losses = jax.nn.logsumexp(logits, axis=-1) - of(target)
        return losses.mean(), of(own).mean(), logits.mean(), jnp.square(logits).mean()

    flat = hidden(model, params, tokens), tokens.reshape(-1), targets.reshape(-1)
    rows = tuple(in_blocks(array, shape.vocab) for array in flat)
    loss, own, mean, square = (x.mean() for x in jax.lax.map(block, rows))
    return loss, jnp.sqrt(square - mean**2), own
