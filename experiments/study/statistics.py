"""What the logits look like before any training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from experiments.study.loss import in_blocks
from experiments.study.model import GPT
from experiments.study.protocol import Protocol, Scheme
from experiments.study.train import (
    Shape,
    Traced,
    initial_params,
    random_windows,
    shape_of,
    traced,
)

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
    params = initial_params(shape, scheme, NETWORK_SEED)
    numbers = _measure(params, traced(scheme, width), text, shape=shape, protocol=protocol)
    return Initial(*map(float, numbers))


@functools.partial(jax.jit, static_argnames=("shape", "protocol"))
def _measure(
    params: Any, numbers: Traced, text: jax.Array, *, shape: Shape, protocol: Protocol
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Loss, standard deviation and own-token logit, over blocks of rows."""
    key, count = jax.random.key(WINDOW_SEED), protocol.initial_windows
    tokens, targets = random_windows(key, text, count, protocol.window)
    model = shape.model(numbers.lookup, numbers.logits)
    hidden = model.apply({"params": params}, tokens, method=GPT.hidden)
    output = params["table"]["embedding"] if shape.tied else params["head"]

    def block(rows: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        h, own, target = rows
        logits = h @ output.T

        def of(ids: jax.Array) -> jax.Array:
            return jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]

        losses = jax.nn.logsumexp(logits, axis=-1) - of(target)
        return losses.mean(), of(own).mean(), logits.mean(), jnp.square(logits).mean()

    flat = hidden, tokens.reshape(-1), targets.reshape(-1)
    rows = tuple(in_blocks(array, shape.vocab) for array in flat)
    loss, own, mean, square = (x.mean() for x in jax.lax.map(block, rows))
    return loss, jnp.sqrt(square - mean**2), own
