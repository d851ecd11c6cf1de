"""Lookups, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, axis_of, cast

_INSIDE = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def rows_of(table: Any, index: Any, axis: int = 0) -> Any:
    """Entries of a table along an axis, as one gather.

    Arguments:
        table: array.
        index: integer array of any shape.
        axis: the axis of the table that the index counts along.
    """
    lead = (slice(None),) * axis
    return table.at[(*lead, index)].get(mode=_INSIDE, wrap_negative_indices=False)


def _embedding(result: Result, table: Any, index: Any, *_: Any, **__: Any) -> Any:
    return rows_of(table, index)


def _embedding_bag(
    result: Result, table: Any, index: Any, offsets: Any, *rest: Any, **named: Any
) -> Any:
    """Sums or means of rows; bags of equal size are assumed."""
    mode = named.get("mode", rest[1] if len(rest) > 1 else 0)
    bags = result.shape[0]
    rows = rows_of(table, index.reshape(-1)).reshape(bags, -1, table.shape[-1])
    pooled = (jnp.sum, jnp.mean, jnp.max)[mode](rows, 1)
    others = [
        None if output is None else jnp.zeros(output.shape, output.dtype)
        for output in result.outputs[1:]
    ]
    return (pooled, *others)


def _index_select(result: Result, x: Any, dim: int, index: Any) -> Any:
    return rows_of(x, index, axis_of(dim, x.ndim))


def _true_places(mask: Any, count: int) -> tuple[Any, ...]:
    """Indices of the true entries of a mask whose number is known."""
    return tuple(place for place in jnp.nonzero(mask, size=count, fill_value=0))


def _listed(result: Result, x: Any, indices: Sequence[Any], count: int | None) -> tuple[Any, ...]:
    """Torch's list of indices, masks resolved, as JAX indexes."""
    listed: list[Any] = []
    for index in indices:
        if index is None:
            listed.append(slice(None))
        elif index.dtype in (np.bool_, np.uint8):
            assert count is not None
            listed += _true_places(index, count)
        else:
            listed.append(index)
    return tuple(listed)


def _selected_number(result: Result, x: Any, indices: Sequence[Any]) -> int | None:
    """How many entries a mask among the indices selects, read off the result's shape."""
    for position, index in enumerate(indices):
        if index is not None and index.dtype in (np.bool_, np.uint8):
            other = [i for i in indices if i is not None and i is not index]
            if other:
                return int(np.broadcast_shapes(*(i.shape for i in other))[0])
            return result.shape[position]
    return None


def _index(result: Result, x: Any, indices: Sequence[Any]) -> Any:
    places = _listed(result, x, indices, _selected_number(result, x, indices))
    return x.at[places].get(mode=_INSIDE)


def _index_put(
    result: Result, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, *_: Any
) -> Any:
    values = cast(values, x.dtype)
    masks = [i for i in indices if i is not None and i.dtype in (np.bool_, np.uint8)]
    if masks and len(indices) == 1 and (values.size == 1 or values.shape == x.shape):
        mask = masks[0].reshape(masks[0].shape + (1,) * (x.ndim - masks[0].ndim))
        return jnp.where(mask != 0, values, x)
    count = values.shape[0] if masks and values.ndim else 1
    target = x.at[_listed(result, x, indices, count)]
    return target.add(values) if accumulate else target.set(values)


def _gather(result: Result, x: Any, dim: int, index: Any, **_: Any) -> Any:
    if x.ndim == 0:
        return jnp.broadcast_to(x, result.shape)
    return x.at[_along(index, dim)].get(mode=_INSIDE, wrap_negative_indices=False)


def _take_along_dim(result: Result, x: Any, index: Any, dim: int | None = None) -> Any:
    """Unlike gather, it broadcasts both over the other axes."""
    if dim is None:
        x, index, dim = x.ravel(), index.ravel(), 0
    axis = axis_of(dim, x.ndim)
    others = [max(pair) for pair in zip(x.shape, index.shape, strict=True)]
    wide, places = list(others), list(others)
    wide[axis], places[axis] = x.shape[axis], index.shape[axis]
    return _gather(result, jnp.broadcast_to(x, wide), axis, jnp.broadcast_to(index, places))


def _along(index: Any, dim: int) -> tuple[Any, ...]:
    """Full indices for an index along one axis that keeps the others' positions."""
    axis = axis_of(dim, index.ndim)
    return tuple(
        index if position == axis else lax.broadcasted_iota(np.int32, index.shape, position)
        for position in range(index.ndim)
    )


def _scatter(result: Result, x: Any, dim: int, index: Any, source: Any, **named: Any) -> Any:
    source = cast(source, x.dtype)
    if source.ndim:
        source = source[tuple(slice(0, size) for size in index.shape)]
    target = x.at[_along(index, dim)]
    reduce = named.get("reduce")
    return target.add(source) if reduce == "add" else target.set(source)


def _scatter_add(result: Result, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter(result, x, dim, index, source, reduce="add")


def _scatter_reduce(
    result: Result, x: Any, dim: int, index: Any, source: Any, reduce: str, **_: Any
) -> Any:
    target = x.at[_along(index, dim)]
    source = source[tuple(slice(0, size) for size in index.shape)]
    return {"sum": target.add, "prod": target.mul, "amax": target.max, "amin": target.min}.get(
        reduce, target.add
    )(source)


def _index_add(result: Result, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    source = source if alpha == 1 else source * alpha
    place = (slice(None),) * axis_of(dim, x.ndim) + (index,)
    return x.at[place].add(cast(source, x.dtype))


def _index_copy(result: Result, x: Any, dim: int, index: Any, source: Any) -> Any:
    place = (slice(None),) * axis_of(dim, x.ndim) + (index,)
    return x.at[place].set(cast(source, x.dtype))


def _masked_scatter(result: Result, x: Any, mask: Any, source: Any) -> Any:
    """Entries under a mask are taken from a source, in order."""
    order = jnp.cumsum(jnp.broadcast_to(mask, x.shape).reshape(-1).astype(np.int32)) - 1
    taken = rows_of(source.reshape(-1), jnp.clip(order, 0, source.size - 1)).reshape(x.shape)
    return lax.select(jnp.broadcast_to(mask, x.shape), cast(taken, x.dtype), x)


def _masked_select(result: Result, x: Any, mask: Any) -> Any:
    x, mask = jnp.broadcast_arrays(x, mask)
    return x.at[_true_places(mask, result.shape[0])].get(mode=_INSIDE)


def _nonzero(result: Result, x: Any) -> Any:
    return jnp.stack(_true_places(x != 0, result.shape[0]), -1) if x.ndim else x[None, None]


def _nonzero_each(result: Result, x: Any) -> Any:
    first = result.outputs[0]
    assert first is not None
    return _true_places(x != 0, first.shape[0])


def _where_places(result: Result, condition: Any) -> Any:
    return _nonzero_each(result, condition)


def _one_hot(result: Result, index: Any, classes: int = -1) -> Any:
    columns = lax.broadcasted_iota(np.int32, (1,) * index.ndim + (result.shape[-1],), index.ndim)
    return (index[..., None] == columns).astype(result.dtype)


def _bucketize(result: Result, x: Any, boundaries: Any, **_: Any) -> Any:
    return jnp.searchsorted(boundaries, x)


LOWERINGS: dict[str, Lowering] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
    "bucketize.Tensor": _bucketize,
    "embedding.default": _embedding,
    "embedding_bag.default": _embedding_bag,
    "embedding_bag.padding_idx": _embedding_bag,
    "gather.default": _gather,
    "index.Tensor": _index,
    "index_add.default": _index_add,
    "index_copy.default": _index_copy,
    "index_put.default": _index_put,
    "index_select.default": _index_select,
    "masked_scatter.default": _masked_scatter,
    "masked_select.default": _masked_select,
    "nonzero.default": _nonzero,
    "nonzero_numpy.default": _nonzero_each,
    "one_hot.default": _one_hot,
    "scatter.reduce": _scatter,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "scatter.value_reduce": _scatter,
    "scatter_add.default": _scatter_add,
    "scatter_reduce.two": _scatter_reduce,
    "take_along_dim.default": _take_along_dim,
    "where.default": _where_places,
}
