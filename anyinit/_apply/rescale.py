"""Apply a plan: multiply every planned weight by one number."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anyinit._apply.match import check_parameters
from anyinit._apply.variables import Variables
from anyinit._leaf_names import named_leaves
from anyinit._plan.plan import Plan


def rescale(plan: Plan, params: Any) -> Any:
    """Give every planned weight the standard deviation that the plan asks for.

    A pure function that can be jitted. Each planned leaf becomes ``leaf * (sigma / rms(leaf))``,
    computed in float32 (float64 where the leaf has it) and cast to the leaf's dtype last; every
    other leaf is returned as the object that was passed.

    >>> plan = Plan(weights=())
    >>> rescale(plan, {})
    {}

    Arguments:
        plan: the plan; static under ``jax.jit``.
        params: the whole variables or the inner ``params``, in any container.

    Returns:
        The same tree, container types and dtypes included. ``Variables`` carry ``plan``.

    Raises:
        ValueError: the parameters belong to another model.
    """
    leaves, treedef = named_leaves(params, plan.known_names)
    check_parameters(plan, leaves)
    planned = plan.weight_by_name
    result = treedef.unflatten(
        scale_to(leaf.value, planned[leaf.name].sigma, planned[leaf.name].layer_axes)
        if leaf.name in planned
        else leaf.value
        for leaf in leaves
    )
    return Variables(result, plan=plan) if isinstance(result, Variables) else result


def scale_to(
    leaf: Any, sigma: float | tuple[float, ...], layer_axes: tuple[int, ...] = ()
) -> jax.Array:
    """Multiply an array by the one positive number that makes its rms ``sigma``.

    Rows (entries of the first axis) that are all zero, as padding is, do not count in the rms
    and stay zero.

    >>> scale_to(jnp.array([[1.0, -1.0], [0.0, 0.0]]), 0.5).tolist()
    [[0.5, -0.5], [0.0, 0.0]]

    Arguments:
        leaf: array of any shape and floating-point dtype.
        sigma: the rms wanted; a tuple holds one number a layer.
        layer_axes: the axes that count the layers of a tuple, the outermost first.

    Returns:
        Array of the same shape and dtype. An array of zeros stays zero.
    """
    leaf = jnp.asarray(leaf)
    wide = jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32
    scaled: jax.Array = _scale_all(leaf, jnp.asarray(sigma, wide), layer_axes)
    return scaled


# Compiled once a shape: outside the caller's own jit, no step of it then makes a copy of a table.
@functools.partial(jax.jit, static_argnums=2)
def _scale_all(leaf: jax.Array, sigma: jax.Array, layer_axes: tuple[int, ...]) -> jax.Array:
    """Scale the whole leaf, or each layer of it where ``sigma`` has one number a layer."""
    wide = leaf.astype(sigma.dtype)
    if not layer_axes:
        return _scale(wide, sigma).astype(leaf.dtype)
    scale = _scale
    for depth in reversed(range(len(layer_axes))):
        axis = layer_axes[depth] - sum(outer < layer_axes[depth] for outer in layer_axes[:depth])
        scale = jax.vmap(scale, in_axes=(axis, 0), out_axes=axis)
    layers = [leaf.shape[axis] for axis in layer_axes]
    return scale(wide, sigma.reshape(layers)).astype(leaf.dtype)


def _scale(array: jax.Array, sigma: jax.Array) -> jax.Array:
    """``array * sigma / rms`` with the rms over the rows that are not all zero."""
    within_row = tuple(range(1, array.ndim)) if array.ndim >= 2 else None
    # Squares of very large or small entries leave float32's range: divide by the largest first.
    # It cancels out of the result, hence no gradient is wanted through it.
    row_peak = jax.lax.stop_gradient(jnp.max(jnp.abs(array), axis=within_row, initial=0.0))
    peak = jnp.max(row_peak, initial=0.0)
    peak = jnp.where(peak == 0.0, jnp.ones_like(peak), peak)
    # A mean of row means: one float32 sum over a whole table would lose digits.
    row_moment = jnp.mean(jnp.square(array / peak), axis=within_row)
    rows = jnp.sum(jnp.where(row_peak == 0.0, jnp.zeros_like(peak), jnp.ones_like(peak)))
    moment = jnp.sum(row_moment) / jnp.maximum(rows, jnp.ones_like(rows))
    # The inner replacement keeps the gradient of the square root finite for an array of zeros.
    rms = peak * jnp.sqrt(jnp.where(moment == 0.0, jnp.ones_like(moment), moment))
    return array * (sigma / rms)
