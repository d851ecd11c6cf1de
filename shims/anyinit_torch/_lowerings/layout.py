"""Operators that move elements without computing anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, axes_of, axis_of, cast


def _reshape(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    return x if x.shape == result.shape else lax.reshape(x, result.shape)


def _view_dtype(result: Result, x: Any, dtype: Any) -> Any:
    return lax.bitcast_convert_type(x, result.dtype).reshape(result.shape)


def _permute(result: Result, x: Any, axes: Sequence[int]) -> Any:
    return lax.transpose(x, axes_of(axes, x.ndim)) if x.ndim else x


def _transpose(result: Result, x: Any, first: int, second: int) -> Any:
    return jnp.swapaxes(x, first, second) if x.ndim else x


def _reversed(result: Result, x: Any) -> Any:
    return lax.transpose(x, tuple(reversed(range(x.ndim))))


def _matrix_transpose(result: Result, x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2) if x.ndim > 1 else x


def _movedim(result: Result, x: Any, source: Any, destination: Any) -> Any:
    return jnp.moveaxis(x, source, destination)


def _expand(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    return jnp.broadcast_to(x, result.shape)


def _repeat(result: Result, x: Any, repeats: Sequence[int]) -> Any:
    """Repetition as broadcasting, so that the copies stay recognizable as the same numbers."""
    x = x.reshape((1,) * (len(repeats) - x.ndim) + x.shape)
    wide = x.reshape(tuple(size for axis in x.shape for size in (1, axis)))
    target = tuple(
        size for count, axis in zip(repeats, x.shape, strict=True) for size in (count, axis)
    )
    return jnp.broadcast_to(wide, target).reshape(result.shape)


def _tile(result: Result, x: Any, repeats: Sequence[int]) -> Any:
    return _repeat(result, x, (1,) * (x.ndim - len(repeats)) + tuple(repeats))


def _repeat_interleave(
    result: Result, x: Any, repeats: int, dim: int | None = None, **_: Any
) -> Any:
    x = x.reshape(-1) if dim is None else x
    axis = axis_of(dim or 0, x.ndim)
    wide = jnp.expand_dims(x, axis + 1)
    target = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    return jnp.broadcast_to(wide, target).reshape(result.shape)


def _concatenate(result: Result, parts: Sequence[Any], dim: int = 0) -> Any:
    # torch lets an empty one-dimensional tensor join anything.
    kept = [cast(part, result.dtype) for part in parts if part.shape != (0,)]
    if not kept:
        return jnp.zeros(result.shape, result.dtype)
    return kept[0] if len(kept) == 1 else lax.concatenate(kept, axis_of(dim, kept[0].ndim))


def _stack(result: Result, parts: Sequence[Any], dim: int = 0) -> Any:
    axis = axis_of(dim, len(result.shape))
    wide = [jnp.expand_dims(cast(part, result.dtype), axis) for part in parts]
    return lax.concatenate(wide, axis)


def _pieces(result: Result, x: Any, dim: int) -> list[Any]:
    """Consecutive pieces along an axis, of the sizes that torch has found."""
    axis = axis_of(dim, x.ndim)
    pieces, start = [], 0
    for output in result.outputs:
        assert output is not None
        size = output.shape[axis]
        pieces.append(lax.slice_in_dim(x, start, start + size, axis=axis))
        start += size
    return pieces


def _split(result: Result, x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    return _pieces(result, x, dim)


def _unbind(result: Result, x: Any, dim: int = 0) -> list[Any]:
    axis = axis_of(dim, x.ndim)
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _slice(
    result: Result,
    x: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    axis = axis_of(dim, x.ndim)
    first, last, _ = slice(start, end).indices(x.shape[axis])
    if first == 0 and last >= x.shape[axis] and step == 1:
        return x
    return lax.slice_in_dim(x, first, max(last, first), stride=step, axis=axis)


def _narrow(result: Result, x: Any, dim: int, start: int, length: int) -> Any:
    return _slice(result, x, dim, start, axis_start(start, x.shape[dim]) + length)


def axis_start(start: int, size: int) -> int:
    """A position along an axis counted from the front."""
    return start + size if start < 0 else start


def _select(result: Result, x: Any, dim: int, index: int) -> Any:
    return lax.index_in_dim(x, index, axis_of(dim, x.ndim), keepdims=False)


def _flip(result: Result, x: Any, axes: Sequence[int]) -> Any:
    return lax.rev(x, axes_of(axes, x.ndim)) if axes else x


def _roll(result: Result, x: Any, shifts: Any, axes: Any = ()) -> Any:
    if not axes:
        return jnp.roll(x.reshape(-1), int(np.atleast_1d(shifts)[0])).reshape(x.shape)
    return jnp.roll(x, tuple(np.atleast_1d(shifts)), tuple(np.atleast_1d(axes)))


def _widths(pad: Sequence[int], rank: int) -> list[tuple[int, int, int]]:
    """Padding as JAX takes it; torch lists it from the last axis backwards."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    return [(0, 0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _pad_constant(result: Result, x: Any, pad: Sequence[int], value: float = 0) -> Any:
    return lax.pad(x, jnp.asarray(value).astype(x.dtype), _widths(pad, x.ndim))


def _pad_edges(mode: str) -> Lowering:
    def lowering(result: Result, x: Any, pad: Sequence[int]) -> Any:
        widths = [(low, high) for low, high, _ in _widths(pad, x.ndim)]
        return jnp.pad(x, widths, mode=mode)

    return lowering


def _unfold(result: Result, x: Any, dim: int, size: int, step: int) -> Any:
    axis = axis_of(dim, x.ndim)
    count = (x.shape[axis] - size) // step + 1
    index = np.arange(count)[:, None] * step + np.arange(size)[None, :]
    windows = jnp.take(x, index.reshape(-1), axis=axis, mode="clip")
    windows = windows.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(windows, axis + 1, -1)


def _pixel_shuffle(result: Result, x: Any, factor: int) -> Any:
    *lead, channels, height, width = x.shape
    x = x.reshape(*lead, channels // factor**2, factor, factor, height, width)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return lax.transpose(x, order).reshape(result.shape)


def _pixel_unshuffle(result: Result, x: Any, factor: int) -> Any:
    *lead, channels, height, width = x.shape
    x = x.reshape(*lead, channels, height // factor, factor, width // factor, factor)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return lax.transpose(x, order).reshape(result.shape)


def _diagonal(result: Result, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


def _triangle(upper: bool) -> Lowering:
    def lowering(result: Result, x: Any, diagonal: int = 0) -> Any:
        rows, columns = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - 2 + i) for i in (0, 1))
        kept = columns - rows >= diagonal if upper else columns - rows <= diagonal
        return lax.select(kept, x, jnp.zeros_like(x))

    return lowering


def _as_strided(
    result: Result, x: Any, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Any:
    """Elements at given places of a dense tensor's storage."""
    return strided_view(x, tuple(size), tuple(stride), offset or 0)


def strided_view(x: Any, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Any:
    """Elements of a row-major array at the places ``offset + Σ index·stride``.

    Arguments:
        x: array of any shape.
        size: shape of the view.
        stride: step of each of its axes in the flattened array.
        offset: place of its first element.
    """
    if offset == 0 and math.prod(size) == x.size:
        order = sorted(range(len(size)), key=lambda axis: (-stride[axis], axis))
        dense = [math.prod(size[a] for a in order[i + 1 :]) for i in range(len(order))]
        if all(
            size[axis] == 1 or stride[axis] == step for axis, step in zip(order, dense, strict=True)
        ):
            laid = lax.reshape(x, tuple(size[axis] for axis in order))
            return lax.transpose(laid, tuple(int(i) for i in np.argsort(order)))
    places = np.full((1,) * len(size), offset, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        places = places + (np.arange(length) * step).reshape(shape)
    return jnp.take(x.reshape(-1), np.broadcast_to(places, size), mode="clip")


def _view_as_real(result: Result, x: Any) -> Any:
    return jnp.stack([lax.real(x), lax.imag(x)], axis=-1)


def _view_as_complex(result: Result, x: Any) -> Any:
    return lax.complex(x[..., 0], x[..., 1])


def _complex(result: Result, real: Any, imaginary: Any) -> Any:
    return lax.complex(real, imaginary)


def _slice_scatter(
    result: Result,
    x: Any,
    source: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    axis = axis_of(dim, x.ndim)
    first, last, _ = slice(start, end).indices(x.shape[axis])
    source = cast(source, x.dtype)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, source, first, axis)
    index = (slice(None),) * axis + (slice(first, last, step),)
    return x.at[index].set(source)


def _select_scatter(result: Result, x: Any, source: Any, dim: int, index: int) -> Any:
    axis = axis_of(dim, x.ndim)
    source = jnp.expand_dims(cast(source, x.dtype), axis)
    return lax.dynamic_update_slice_in_dim(x, source, index % x.shape[axis], axis)


def _im2col(
    result: Result,
    x: Any,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Sliding windows of an image, each as a column."""
    x = jnp.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    indices = []
    for axis in (0, 1):
        count = (x.shape[2 + axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        offsets = np.arange(kernel[axis])[:, None] * dilation[axis]
        indices.append(offsets + np.arange(count)[None, :] * stride[axis])
    for axis, index in enumerate(indices):
        x = jnp.take(x, index.reshape(-1), axis=2 + axis, mode="clip")
    batch, channels = x.shape[:2]
    (tall, rows), (wide, columns) = (index.shape for index in indices)
    x = x.reshape(batch, channels, tall, rows, wide, columns)
    return lax.transpose(x, (0, 1, 2, 4, 3, 5)).reshape(result.shape)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        """view.default _unsafe_view.default reshape.default flatten.using_ints unflatten.int
        unsqueeze.default squeeze.default squeeze.dim squeeze.dims view_as.default view_copy.default
        reshape_as.default _reshape_copy.default unsqueeze_copy.default squeeze_copy.dim
        ravel.default _reshape_alias.default""".split(),
        _reshape,
    ),
    **dict.fromkeys(
        "expand.default expand_as.default broadcast_to.default expand_copy.default".split(), _expand
    ),
    **dict.fromkeys("permute.default permute_copy.default".split(), _permute),
    **dict.fromkeys(
        "transpose.int swapaxes.default swapdims.default transpose_copy.int".split(), _transpose
    ),
    **dict.fromkeys("t.default numpy_T.default t_copy.default".split(), _reversed),
    **dict.fromkeys("mT.default mH.default adjoint.default".split(), _matrix_transpose),
    **dict.fromkeys("cat.default concat.default concatenate.default".split(), _concatenate),
    **dict.fromkeys(
        """split.Tensor split.sizes split_with_sizes.default chunk.default unsafe_chunk.default
        unsafe_split.Tensor unsafe_split_with_sizes.default tensor_split.sections
        tensor_split.indices split_copy.Tensor split_with_sizes_copy.default""".split(),
        _split,
    ),
    "_im2col.default": _im2col,
    "as_strided.default": _as_strided,
    "as_strided_copy.default": _as_strided,
    "complex.default": _complex,
    "constant_pad_nd.default": _pad_constant,
    "diagonal.default": _diagonal,
    "flip.default": _flip,
    "im2col.default": _im2col,
    "imag.default": lambda result, x: lax.imag(x),
    "movedim.int": _movedim,
    "movedim.intlist": _movedim,
    "moveaxis.int": _movedim,
    "moveaxis.intlist": _movedim,
    "narrow.default": _narrow,
    "pixel_shuffle.default": _pixel_shuffle,
    "pixel_unshuffle.default": _pixel_unshuffle,
    "real.default": lambda result, x: lax.real(x),
    "reflection_pad1d.default": _pad_edges("reflect"),
    "reflection_pad2d.default": _pad_edges("reflect"),
    "reflection_pad3d.default": _pad_edges("reflect"),
    "repeat.default": _repeat,
    "repeat_interleave.self_int": _repeat_interleave,
    "replication_pad1d.default": _pad_edges("edge"),
    "replication_pad2d.default": _pad_edges("edge"),
    "replication_pad3d.default": _pad_edges("edge"),
    "roll.default": _roll,
    "select.int": _select,
    "select_copy.int": _select,
    "select_scatter.default": _select_scatter,
    "slice.Tensor": _slice,
    "slice_copy.Tensor": _slice,
    "slice_scatter.default": _slice_scatter,
    "stack.default": _stack,
    "tile.default": _tile,
    "tril.default": _triangle(upper=False),
    "triu.default": _triangle(upper=True),
    "unbind.int": _unbind,
    "unfold.default": _unfold,
    "view.dtype": _view_dtype,
    "view_as_complex.default": _view_as_complex,
    "view_as_real.default": _view_as_real,
}
