"""Reductions, cumulative sums, and what is normalized by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit_tensorflow._operation import Lowering, Operation, number, numbers


def _reduction(function: Callable[..., Any]) -> Lowering:
    def lowering(operation: Operation, x: Any, axes: Any) -> Any:
        kept = operation.attribute("keep_dims")
        return function(jnp.asarray(x), axis=tuple(numbers(axes)), keepdims=kept)

    return lowering


def _extreme_place(function: Callable[..., Any]) -> Lowering:
    return lambda operation, x, axis: function(x, number(axis))


def _cumulative(function: Callable[..., Any], start: int) -> Lowering:
    def lowering(operation: Operation, x: Any, axis: Any) -> Any:
        place = number(axis)
        backwards = operation.attribute("reverse")
        x = jnp.flip(x, place) if backwards else x
        if operation.attribute("exclusive"):
            first = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=place), start)
            x = jnp.concatenate([first, jax.lax.slice_in_dim(x, 0, -1, axis=place)], place)
        found = function(x, place)
        return jnp.flip(found, place) if backwards else found

    return lowering


def _batch_norm(
    operation: Operation, x: Any, scale: Any, offset: Any, mean: Any, variance: Any
) -> Any:
    axis = operation.attribute("data_format").index("C")
    others = tuple(place for place in range(x.ndim) if place != axis)
    along = tuple(-1 if place == axis else 1 for place in range(x.ndim))
    wide = x.astype(scale.dtype)
    if operation.attribute("is_training"):
        mean, variance = jnp.mean(wide, others), jnp.var(wide, others)
    factor = scale * jax.lax.rsqrt(variance + operation.attribute("epsilon"))
    y = (wide - mean.reshape(along)) * factor.reshape(along) + offset.reshape(along)
    rest = [mean, variance, mean, variance, jnp.zeros((0,), scale.dtype)]
    return [y.astype(x.dtype), *rest[: len(operation.raw.outputs) - 1]]


LOWERINGS: dict[str, Lowering] = {
    "All": _reduction(jnp.all),
    "Any": _reduction(jnp.any),
    "ArgMax": _extreme_place(jnp.argmax),
    "ArgMin": _extreme_place(jnp.argmin),
    "Cumprod": _cumulative(jnp.cumprod, 1),
    "Cumsum": _cumulative(jnp.cumsum, 0),
    "FusedBatchNorm": _batch_norm,
    "FusedBatchNormV2": _batch_norm,
    "FusedBatchNormV3": _batch_norm,
    "L2Loss": lambda operation, x: jnp.sum(jnp.square(x)) / np.asarray(2, x.dtype),
    "LogSoftmax": lambda operation, x: jax.nn.log_softmax(x),
    "Max": _reduction(jnp.max),
    "Mean": _reduction(jnp.mean),
    "Min": _reduction(jnp.min),
    "Prod": _reduction(jnp.prod),
    "Softmax": lambda operation, x: jax.nn.softmax(x),
    "Sum": _reduction(jnp.sum),
}
