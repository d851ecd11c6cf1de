"""Convolutions, pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result

_Numbers = int | Sequence[int]


def _each(numbers: _Numbers, rank: int) -> tuple[int, ...]:
    """One number a spatial axis."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return tuple(listed * rank if len(listed) == 1 else listed)


def _convolve(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any,
    stride: _Numbers,
    padding: Any,
    dilation: _Numbers,
    transposed: bool,
    output_padding: _Numbers,
    groups: int,
) -> Any:
    rank = weight.ndim - 2
    single = x.ndim == rank + 1
    x = x[None] if single else x
    stride, dilation = _each(stride, rank), _each(dilation, rank)
    taps = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if padding == "valid":
        padding = 0
    if padding == "same":
        pads = [(tap // 2, tap - tap // 2) for tap in taps]
    else:
        pads = [(p, p) for p in _each(padding, rank)]
    if transposed:
        extra = _each(output_padding, rank)
        pads = [
            (tap - low, tap - high + more)
            for tap, (low, high), more in zip(taps, pads, extra, strict=True)
        ]
        weight = _transposed_kernel(weight, groups)
    spatial = tuple(range(2, 2 + rank))
    same = (0, 1, *spatial)
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=(1,) * rank if transposed else stride,
        padding=pads,
        lhs_dilation=stride if transposed else (1,) * rank,
        rhs_dilation=dilation,
        dimension_numbers=lax.ConvDimensionNumbers(same, same, same),
        feature_group_count=groups,
    )
    if bias is not None:
        y = y + jnp.broadcast_to(bias.reshape((1, -1) + (1,) * rank), y.shape)
    return y[0] if single else y


def _transposed_kernel(weight: Any, groups: int) -> Any:
    """The kernel of the convolution that a transposed one is: flipped, in- and outputs swapped."""
    weight = lax.rev(weight, tuple(range(2, weight.ndim)))
    inputs, outputs, *taps = weight.shape
    if groups == 1:
        return jnp.swapaxes(weight, 0, 1)
    weight = weight.reshape(groups, inputs // groups, outputs, *taps)
    return jnp.swapaxes(weight, 1, 2).reshape(groups * outputs, inputs // groups, *taps)


def _conv(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: Any = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> Any:
    return _convolve(result, x, weight, bias, stride, padding, dilation, False, 0, groups)


def _conv_transpose(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers = 0,
    output_padding: _Numbers = 0,
    groups: int = 1,
    dilation: _Numbers = 1,
) -> Any:
    return _convolve(
        result, x, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


def _convolution(
    result: Result,
    x: Any,
    weight: Any,
    bias: Any,
    stride: _Numbers,
    padding: _Numbers,
    dilation: _Numbers,
    transposed: bool,
    output_padding: _Numbers,
    groups: int,
    *_: Any,
) -> Any:
    return _convolve(
        result, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _windows(x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, dilation: Any) -> Any:
    """Window sizes, strides, padding and dilation over all axes of ``x``."""
    rank = len(kernel) if not isinstance(kernel, int) else x.ndim - 2
    sizes, dilations, pads = (_each(n, rank) for n in (kernel, dilation, padding))
    steps = sizes if stride is None or stride == [] or stride == () else _each(stride, rank)
    lead = (1,) * (x.ndim - rank)
    widths = [(0, 0)] * (x.ndim - rank)
    for axis in range(rank):
        length = x.shape[x.ndim - rank + axis]
        span = dilations[axis] * (sizes[axis] - 1) + 1
        left = length + 2 * pads[axis] - span
        more = (-left) % steps[axis] if ceil else 0
        # The last window must begin inside the input or its left padding.
        if more and (left + more) // steps[axis] * steps[axis] >= length + pads[axis]:
            more = 0
        widths.append((pads[axis], pads[axis] + more))
    return (*lead, *sizes), (*lead, *steps), widths, (*lead, *dilations)


def _max_pool(
    result: Result,
    x: Any,
    kernel: _Numbers,
    stride: Any = None,
    padding: _Numbers = 0,
    dilation: _Numbers = 1,
    ceil_mode: bool = False,
) -> Any:
    sizes, steps, widths, dilations = _windows(x, kernel, stride, padding, ceil_mode, dilation)
    is_float = jnp.issubdtype(x.dtype, np.inexact)
    low = np.asarray(-np.inf if is_float else np.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, low, lax.max, sizes, steps, widths, window_dilation=dilations)


def _max_pool_with_indices(result: Result, *args: Any, **named: Any) -> Any:
    pooled = _max_pool(result, *args, **named)
    return pooled, jnp.zeros(pooled.shape, np.int32)


def _average_pool(
    result: Result,
    x: Any,
    kernel: _Numbers,
    stride: Any = None,
    padding: _Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    sizes, steps, widths, _ = _windows(x, kernel, stride, padding, ceil_mode, 1)
    zero = np.asarray(0, x.dtype)
    total = lax.reduce_window(x, zero, lax.add, sizes, steps, widths)
    return total / (divisor_override or int(np.prod(sizes)))


def _adaptive(average: bool) -> Lowering:
    def lowering(result: Result, x: Any, size: Any) -> Any:
        """Pooling to a given size: windows of equal size where they divide, else by parts."""
        rank = len(result.shape[-(x.ndim - 2) :]) if not isinstance(size, int) else x.ndim - 2
        rank = len(size) if not isinstance(size, int) else rank
        for axis in range(x.ndim - rank, x.ndim):
            x = _pooled_axis(x, axis, result.shape[axis], average)
        return x

    return lowering


def _pooled_axis(x: Any, axis: int, count: int, average: bool) -> Any:
    length = x.shape[axis]
    reduce = jnp.mean if average else jnp.max
    if length % count == 0:
        split = (*x.shape[:axis], count, length // count, *x.shape[axis + 1 :])
        return reduce(x.reshape(split), axis + 1)
    parts = []
    for position in range(count):
        start, end = position * length // count, -(-(position + 1) * length // count)
        part = lax.slice_in_dim(x, start, end, axis=axis)
        parts.append(reduce(part, axis, keepdims=True))
    return lax.concatenate(parts, axis)


def _adaptive_max_with_indices(result: Result, x: Any, size: Any) -> Any:
    pooled = _adaptive(average=False)(result, x, size)
    return pooled, jnp.zeros(pooled.shape, np.int32)


def _nearest(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    for axis in range(2, x.ndim):
        length, count = x.shape[axis], result.shape[axis]
        if count == length:
            continue
        if count % length == 0:
            wide = jnp.expand_dims(x, axis + 1)
            target = (*x.shape[: axis + 1], count // length, *x.shape[axis + 1 :])
            merged = (*x.shape[:axis], count, *x.shape[axis + 1 :])
            x = jnp.broadcast_to(wide, target).reshape(merged)
        else:
            places = (np.arange(count) * length) // count
            x = jnp.take(x, places, axis=axis, mode="clip")
    return x


def _interpolated(result: Result, x: Any, *args: Any, **named: Any) -> Any:
    """Linear interpolation between the two neighbours along each spatial axis."""
    corners = named.get("align_corners")
    if corners is None:
        corners = next((argument for argument in args if isinstance(argument, bool)), False)
    for axis in range(2, x.ndim):
        length, count = x.shape[axis], result.shape[axis]
        if count == length:
            continue
        if corners:
            places = np.arange(count) * ((length - 1) / max(count - 1, 1))
        else:
            places = np.clip((np.arange(count) + 0.5) * (length / count) - 0.5, 0, None)
        low = np.minimum(np.floor(places).astype(np.int64), length - 1)
        high = np.minimum(low + 1, length - 1)
        shape = [1] * x.ndim
        shape[axis] = count
        share = np.asarray((places - low).reshape(shape), x.dtype)
        left, right = (jnp.take(x, index, axis=axis, mode="clip") for index in (low, high))
        x = left * (1 - share) + right * share
    return x


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        [f"conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")], _conv
    ),
    **dict.fromkeys(
        ["conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"],
        _conv_transpose,
    ),
    **dict.fromkeys([f"max_pool{n}d.default" for n in (1, 2, 3)], _max_pool),
    **dict.fromkeys(
        [f"max_pool{n}d_with_indices.default" for n in (1, 2, 3)], _max_pool_with_indices
    ),
    **dict.fromkeys([f"avg_pool{n}d.default" for n in (1, 2, 3)], _average_pool),
    **dict.fromkeys([f"adaptive_avg_pool{n}d.default" for n in (1, 2, 3)], _adaptive(True)),
    **dict.fromkeys([f"_adaptive_avg_pool{n}d.default" for n in (2, 3)], _adaptive(True)),
    **dict.fromkeys(
        [f"adaptive_max_pool{n}d.default" for n in (1, 2, 3)], _adaptive_max_with_indices
    ),
    **dict.fromkeys(
        [
            f"upsample_{kind}{n}d.{overload}"
            for kind in ("nearest", "nearest_exact", "_nearest_exact")
            for n in (1, 2, 3)
            for overload in ("default", "vec")
        ],
        _nearest,
    ),
    **dict.fromkeys(
        [
            f"upsample_{kind}.{overload}"
            for kind in ("linear1d", "bilinear2d", "_bilinear2d_aa", "trilinear3d", "bicubic2d")
            for overload in ("default", "vec")
        ],
        _interpolated,
    ),
    "_convolution.default": _convolution,
    "convolution.default": _convolution,
}
