"""Normalizations, written out in means and square roots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, cast


def _normalized(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """The centered and scaled signal, its mean and the reciprocal of its deviation."""
    mean = jnp.mean(x, axes, keepdims=True)
    centered = x - mean
    factor = lax.rsqrt(jnp.mean(lax.square(centered), axes, keepdims=True) + eps)
    return centered * factor, mean, factor


def _affine(x: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if weight is not None:
        x = x * jnp.broadcast_to(cast(weight, x.dtype).reshape(shape), x.shape)
    if bias is not None:
        x = x + jnp.broadcast_to(cast(bias, x.dtype).reshape(shape), x.shape)
    return x


def _channels(x: Any) -> tuple[int, ...]:
    return (1, int(x.shape[1]), *(1 for _ in range(x.ndim - 2)))


def _layer_norm_parts(
    x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y, mean, factor = _normalized(x, axes, eps)
    return _affine(y, weight, bias, tuple(shape)), mean, factor


def _layer_norm(
    result: Result,
    x: Any,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return _layer_norm_parts(x, shape, weight, bias, eps)[0]


def _native_layer_norm(
    result: Result, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    return _layer_norm_parts(x, shape, weight, bias, eps)


def _rms_norm(
    result: Result, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    if eps is None:
        eps = float(jnp.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    y = x * lax.rsqrt(jnp.mean(lax.square(x), axes, keepdims=True) + eps)
    return _affine(y, weight, None, tuple(shape))


def _fused_rms_norm(result: Result, x: Any, shape: Any, weight: Any, eps: Any) -> Any:
    statistic = result.outputs[1]
    assert statistic is not None
    return _rms_norm(result, x, shape, weight, eps), jnp.ones(statistic.shape, statistic.dtype)


def _group_norm(
    result: Result,
    x: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    split = x.reshape(x.shape[0], groups, -1)
    y = _normalized(split, (2,), eps)[0].reshape(x.shape)
    return _affine(y, weight, bias, _channels(x))


def _native_group_norm(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> Any:
    y = _group_norm(result, x, groups, weight, bias, eps)
    return (y, jnp.zeros((batch, groups), y.dtype), jnp.ones((batch, groups), y.dtype))


def _instance_norm(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    if not use_input and mean is not None:
        return _batch_norm(result, x, weight, bias, mean, var, False, momentum, eps)
    y = _normalized(x, tuple(range(2, x.ndim)), eps)[0]
    return _affine(y, weight, bias, _channels(x))


def _batch_norm(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    shape = _channels(x)
    if training or mean is None:
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        return _affine(_normalized(x, axes, eps)[0], weight, bias, shape)
    mean, var = (cast(part, x.dtype).reshape(shape) for part in (mean, var))
    return _affine((x - mean) * lax.rsqrt(var + eps), weight, bias, shape)


def _native_batch_norm(training: bool | None) -> Lowering:
    def lowering(
        result: Result, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
    ) -> Any:
        trained = rest[0] if training is None else training
        momentum, eps = rest[-2:]
        y = _batch_norm(result, x, weight, bias, mean, var, trained, momentum, eps)
        others = [
            None if output is None else jnp.zeros(output.shape, output.dtype)
            for output in result.outputs[1:]
        ]
        return (y, *others)

    return lowering


def _weight_norm(result: Result, direction: Any, length: Any, dim: int = 0) -> Any:
    axes = tuple(axis for axis in range(direction.ndim) if axis != dim % direction.ndim)
    axes = tuple(range(direction.ndim)) if dim == -1 else axes
    norm = lax.sqrt(jnp.sum(lax.square(direction), axes, keepdims=True))
    return direction / norm * length


def _weight_norm_interface(result: Result, direction: Any, length: Any, dim: int = 0) -> Any:
    statistic = result.outputs[1]
    assert statistic is not None
    y = _weight_norm(result, direction, length, dim)
    return y, jnp.ones(statistic.shape, statistic.dtype)


def _renormalized(result: Result, x: Any, p: float, dim: int, maximum: float) -> Any:
    axes = tuple(axis for axis in range(x.ndim) if axis != dim % x.ndim)
    norm = jnp.sum(jnp.abs(x) ** p, axes, keepdims=True) ** (1.0 / p)
    return x * jnp.minimum(maximum / (norm + 1e-7), np.float32(1.0))


LOWERINGS: dict[str, Lowering] = {
    "_fused_rms_norm.default": _fused_rms_norm,
    "_native_batch_norm_legit.default": _native_batch_norm(None),
    "_native_batch_norm_legit_functional.default": _native_batch_norm(None),
    "_native_batch_norm_legit_no_training.default": _native_batch_norm(False),
    "_weight_norm.default": _weight_norm,
    "_weight_norm_interface.default": _weight_norm_interface,
    "batch_norm.default": _batch_norm,
    "cudnn_batch_norm.default": _native_batch_norm(None),
    "group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "layer_norm.default": _layer_norm,
    "native_batch_norm.default": _native_batch_norm(None),
    "native_group_norm.default": _native_group_norm,
    "native_layer_norm.default": _native_layer_norm,
    "renorm.default": _renormalized,
    "rms_norm.default": _rms_norm,
}
