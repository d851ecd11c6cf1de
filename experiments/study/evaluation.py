"""The loss after training, on the same windows in every run."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from experiments.study.loss import cross_entropy
from experiments.study.protocol import Protocol
from experiments.study.shapes import Traced
from experiments.study.step import Setting, hidden, random_windows

VALIDATION_SEED = 1234


def validation_loss(
    setting: Setting,
    body: Any,
    output: jax.Array,
    numbers: Traced,
    text: jax.Array,
) -> jax.Array:
    """Mean loss of one run on the fixed windows.

    Arguments:
        setting: that of a tied shape, whichever shape was trained.
        body: the parameters without a head.
        output: the table that the output layer multiplies with, [V, d].
        numbers: the run's multipliers.
        text: the validation text's token ids, [length].
    """
    protocol: Protocol = setting.protocol
    model = setting.shape.model(numbers.lookup, numbers.logits)
    count, window = protocol.validation_windows, protocol.window
    tokens, targets = random_windows(jax.random.key(VALIDATION_SEED), text, count, window)

    def loss_of(batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        rows, following = hidden(model, body, batch[0]), batch[1].reshape(-1)
        return cross_entropy(rows, output, following)

    size = math.gcd(count, protocol.batch)
    batches = tokens.reshape(-1, size, window), targets.reshape(-1, size, window)
    return jnp.mean(jax.lax.map(loss_of, batches))


@functools.cache
def evaluating(setting: Setting) -> Any:
    """The compiled `validation_loss`, for all runs side by side."""
    of_one = functools.partial(validation_loss, setting)
    return jax.jit(setting.together(of_one, (0, 0, 0, None)))
