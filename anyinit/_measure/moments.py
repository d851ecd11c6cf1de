"""Second moments of real arrays, and arrays times one number."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def step_to(found: Any, goal: Any) -> Any:
    """The factor on a weight that brings a second moment to its goal; 1 where nothing arrives."""
    asked = jnp.sqrt(goal / found.astype(jnp.float32))
    return jnp.where(jnp.isfinite(asked) & (found > 0), asked, jnp.float32(1))


def moment(array: Any) -> Any:
    """Second moment of an array, summed row by row so that float32 is enough."""
    squares = jnp.square(jnp.abs(array).astype(wide_dtype(array)))
    return jnp.mean(jnp.mean(squares, axis=-1)) if squares.ndim else squares


def scaled(array: Any, factor: Any) -> Any:
    """An array times one number, computed in float32 and cast last."""
    if jnp.iscomplexobj(array):
        return array * factor.astype(array.dtype)
    wide = wide_dtype(array)
    return (array.astype(wide) * factor.astype(wide)).astype(array.dtype)


def wide_dtype(array: Any) -> Any:
    return jnp.float64 if array.dtype in (jnp.float64, jnp.complex128) else jnp.float32
