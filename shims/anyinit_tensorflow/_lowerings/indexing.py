"""Lookups, and writing at places that are given by number."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anyinit_tensorflow._operation import Lowering, Operation, number

_INSIDE = "promise_in_bounds"


def _take(x: Any, indices: Any, axis: int) -> Any:
    index = (slice(None),) * axis + (indices,)
    return jnp.asarray(x).at[index].get(mode=_INSIDE, wrap_negative_indices=False)


def _gather(operation: Operation, x: Any, indices: Any, axis: Any) -> Any:
    batched, place = operation.attribute("batch_dims"), number(axis)
    indices = jnp.asarray(indices)
    batched = batched % (indices.ndim + 1) if batched < 0 else batched
    take = functools.partial(_take, axis=place % jnp.ndim(x) - batched)
    for _ in range(batched):
        take = jax.vmap(take)
    return take(x, indices)


def _gather_places(operation: Operation, x: Any, places: Any) -> Any:
    return jnp.asarray(x).at[_index(places)].get(mode=_INSIDE)


def _index(places: Any) -> tuple[Any, ...]:
    """Places in the last axis, as an index for each of the axes that they count along."""
    return tuple(jnp.moveaxis(jnp.asarray(places), -1, 0))


def _scatter(operation: Operation, places: Any, updates: Any, shape: Any) -> Any:
    zeros = jnp.zeros(operation.shape, operation.dtype)
    return zeros.at[_index(places)].add(updates)


def _scatter_update(operation: Operation, x: Any, places: Any, updates: Any) -> Any:
    return jnp.asarray(x).at[_index(places)].set(updates)


def _scatter_add(operation: Operation, x: Any, places: Any, updates: Any) -> Any:
    return jnp.asarray(x).at[_index(places)].add(updates)


def _one_hot(operation: Operation, indices: Any, depth: Any, on: Any, off: Any) -> Any:
    axis = operation.attribute("axis")
    chosen = jax.nn.one_hot(indices, number(depth), axis=axis, dtype=operation.dtype)
    known = not isinstance(on, jax.core.Tracer) and not isinstance(off, jax.core.Tracer)
    return chosen if known and on == 1 and off == 0 else jnp.where(chosen == 1, on, off)


def _top_k(operation: Operation, x: Any, k: Any) -> Any:
    return lax.top_k(x, number(k))


LOWERINGS: dict[str, Lowering] = {
    "GatherNd": _gather_places,
    "GatherV2": _gather,
    "OneHot": _one_hot,
    "ScatterNd": _scatter,
    "TensorScatterAdd": _scatter_add,
    "TensorScatterUpdate": _scatter_update,
    "TopKV2": _top_k,
}
