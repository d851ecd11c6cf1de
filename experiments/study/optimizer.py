"""AdamW in the library's partition, for all schemes alike."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

import anyinit
from experiments.study.protocol import Protocol
from experiments.study.shapes import Traced


def optimizer(
    protocol: Protocol, plan: anyinit.Plan, params: Any, numbers: Traced
) -> optax.GradientTransformation:
    """AdamW in the library's partition; where nothing is matched, every label has one rate."""

    def adamw(learning_rate: Any) -> optax.GradientTransformation:
        peak = jnp.where(numbers.matched, learning_rate, numbers.rate)
        return optax.adamw(
            lambda step: peak * schedule(protocol, step), b1=0.9, b2=0.95, weight_decay=0.0
        )

    partition = anyinit.optax_partition(params, adamw, plan=plan, learning_rate=numbers.rate)
    return optax.chain(optax.clip_by_global_norm(1.0), partition)


def schedule(protocol: Protocol, step: Any) -> jax.Array:
    """Linear warm-up times a cosine from 1 to 0.1."""
    cosine = 0.55 + 0.45 * jnp.cos(math.pi * step / protocol.steps)
    return jnp.minimum(1.0, (step + 1) / protocol.warmup) * cosine
