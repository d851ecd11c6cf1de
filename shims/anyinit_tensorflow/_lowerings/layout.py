"""Operators that put the same numbers into other places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_tensorflow._operation import Lowering, NotStaticError, Operation, number, numbers

_LONGEST = np.iinfo(np.int32).max


def _reshape(operation: Operation, x: Any, shape: Any) -> Any:
    try:
        return jnp.reshape(x, numbers(shape))
    except NotStaticError:
        return jnp.reshape(x, operation.shape)


def _squeeze(operation: Operation, x: Any) -> Any:
    axes = [axis % x.ndim for axis in operation.attribute("squeeze_dims")]
    return lax.squeeze(x, axes or [axis for axis, size in enumerate(x.shape) if size == 1])


def _tile(operation: Operation, x: Any, multiples: Any) -> Any:
    """Broadcast and reshaped, which keeps every number what it is to the analysis."""
    x, times = jnp.asarray(x), numbers(multiples)
    sizes = [n for pair in zip(times, x.shape, strict=True) for n in pair]
    wide = lax.broadcast_in_dim(x, sizes, range(1, 2 * x.ndim, 2))
    return wide.reshape([n * size for n, size in zip(times, x.shape, strict=True)])


def _split(operation: Operation, axis: Any, x: Any) -> Any:
    return jnp.split(x, operation.attribute("num_split"), number(axis))


def _split_sizes(operation: Operation, x: Any, sizes: Any, axis: Any) -> Any:
    known = numbers(sizes)
    rest = x.shape[number(axis)] - sum(size for size in known if size >= 0)
    known = [size if size >= 0 else rest for size in known]
    return jnp.split(x, list(np.cumsum(known)[:-1]), number(axis))


def _unpack(operation: Operation, x: Any) -> Any:
    axis = operation.attribute("axis")
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _slice(operation: Operation, x: Any, begin: Any, size: Any) -> Any:
    if isinstance(begin, jax.core.Tracer):
        wanted = numbers(size)
        whole = [total if n < 0 else n for n, total in zip(wanted, x.shape, strict=True)]
        return lax.dynamic_slice(x, list(begin), whole)
    starts = numbers(begin)
    given = zip(starts, numbers(size), x.shape, strict=True)
    ends = [total if n < 0 else start + n for start, n, total in given]
    return lax.slice(x, starts, ends)


def _strided_slice(operation: Operation, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    masks = {
        name: operation.attribute(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    steps = numbers(strides)
    index: list[Any] = []
    for place, step in enumerate(steps):
        given = {name: bool(mask >> place & 1) for name, mask in masks.items()}
        if given["ellipsis"]:
            index.append(Ellipsis)
        elif given["new_axis"]:
            index.append(None)
        elif given["shrink_axis"]:
            traced = isinstance(begin, jax.core.Tracer)
            index.append(begin[place] if traced else numbers(begin)[place])
        else:
            first = None if given["begin"] else numbers(begin)[place]
            last = None if given["end"] else min(numbers(end)[place], _LONGEST)
            index.append(slice(first, last, step))
    return jnp.asarray(x)[tuple(index)]


def _pad(operation: Operation, x: Any, widths: Any, value: Any = 0) -> Any:
    pairs = np.asarray(numbers(widths)).reshape(-1, 2)
    return lax.pad(x, jnp.asarray(value, x.dtype), [(low, high, 0) for low, high in pairs.tolist()])


def _mirror_pad(operation: Operation, x: Any, widths: Any) -> Any:
    pairs = np.asarray(numbers(widths)).reshape(-1, 2)
    return jnp.pad(x, pairs.tolist(), operation.attribute("mode").lower())


def _flip(operation: Operation, x: Any, axes: Any) -> Any:
    return lax.rev(x, [axis % x.ndim for axis in numbers(axes)])


def _roll(operation: Operation, x: Any, shift: Any, axes: Any) -> Any:
    return jnp.roll(x, numbers(shift), numbers(axes))


def _band(operation: Operation, x: Any, lower: Any, upper: Any) -> Any:
    below, above = number(lower), number(upper)
    rows, columns = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - 2 + i) for i in (0, 1))
    kept = jnp.ones_like(rows, bool)
    kept = kept if below < 0 else kept & (rows - columns <= below)
    kept = kept if above < 0 else kept & (columns - rows <= above)
    return jnp.where(kept, x, jnp.zeros_like(x))


def _space_to_batch(operation: Operation, x: Any, block: Any, paddings: Any) -> Any:
    """Every n-th element along each axis, as examples of their own."""
    blocks = numbers(block)
    count = len(blocks)
    pairs = np.asarray(numbers(paddings)).reshape(-1, 2).tolist()
    x = jnp.pad(x, [(0, 0), *pairs, *[(0, 0)] * (x.ndim - 1 - count)])
    shape = [x.shape[0]]
    for size, n in zip(x.shape[1:], blocks, strict=False):
        shape += [size // n, n]
    x = x.reshape(*shape, *x.shape[1 + count :])
    steps = [2 + 2 * i for i in range(count)]
    kept = [1 + 2 * i for i in range(count)]
    x = jnp.transpose(x, [*steps, 0, *kept, *range(1 + 2 * count, x.ndim)])
    return x.reshape(-1, *x.shape[1 + count :])


def _batch_to_space(operation: Operation, x: Any, block: Any, crops: Any) -> Any:
    """The inverse of ``_space_to_batch``."""
    blocks = numbers(block)
    count = len(blocks)
    pairs = np.asarray(numbers(crops)).reshape(-1, 2).tolist()
    x = x.reshape(*blocks, -1, *x.shape[1:])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    x = jnp.transpose(x, [*order, *range(2 * count + 1, x.ndim)])
    sizes = [x.shape[1 + 2 * i] * n for i, n in enumerate(blocks)]
    x = x.reshape(x.shape[0], *sizes, *x.shape[1 + 2 * count :])
    for axis, (low, high) in enumerate(pairs, 1):
        x = lax.slice_in_dim(x, low, x.shape[axis] - high, axis=axis)
    return x


def _resized(method: str) -> Lowering:
    def lowering(operation: Operation, x: Any, size: Any) -> Any:
        if operation.attribute("align_corners") or not operation.attribute("half_pixel_centers"):
            raise NotStaticError("the places that an image is resized at")
        shape = (x.shape[0], *numbers(size), x.shape[-1])
        return jax.image.resize(x, shape, method, antialias=False)

    return lowering


def _write(operation: Operation, x: Any, update: Any, places: Any) -> Any:
    return lax.dynamic_update_slice(jnp.asarray(x), jnp.asarray(update), list(jnp.asarray(places)))


LOWERINGS: dict[str, Lowering] = {
    "BatchToSpaceND": _batch_to_space,
    "BroadcastTo": lambda operation, x, shape: jnp.broadcast_to(x, numbers(shape)),
    "ConcatV2": lambda operation, *given: jnp.concatenate(given[:-1], number(given[-1])),
    "ExpandDims": lambda operation, x, axis: jnp.expand_dims(x, number(axis)),
    "Fill": lambda operation, shape, value: jnp.full(numbers(shape), value),
    "MatrixBandPart": _band,
    "MirrorPad": _mirror_pad,
    "OnesLike": lambda operation, x: jnp.ones_like(x),
    "Pack": lambda operation, *values: jnp.stack(values, operation.attribute("axis")),
    "Pad": _pad,
    "PadV2": _pad,
    "Rank": lambda operation, x: np.asarray(np.ndim(x), np.int32),
    "Reshape": _reshape,
    "ResizeBilinear": _resized("bilinear"),
    "ResizeNearestNeighbor": _resized("nearest"),
    "ReverseV2": _flip,
    "Roll": _roll,
    "Shape": lambda operation, x: np.asarray(np.shape(x), np.int32),
    "ShapeN": lambda operation, *values: [np.asarray(np.shape(x), np.int32) for x in values],
    "Size": lambda operation, x: np.asarray(np.size(x), np.int32),
    "Slice": _slice,
    "SpaceToBatchND": _space_to_batch,
    "Split": _split,
    "SplitV": _split_sizes,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Tile": _tile,
    "Transpose": lambda operation, x, axes: jnp.transpose(x, numbers(axes)),
    "Unpack": _unpack,
    "XlaDynamicUpdateSlice": _write,
    "ZerosLike": lambda operation, x: jnp.zeros_like(x),
}
