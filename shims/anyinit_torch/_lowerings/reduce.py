"""Sums, means, extremes, softmax and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, axes_of, axis_of, cast


def _number_of(x: Any, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def _sum(result: Result, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return jnp.sum(cast(x, result.dtype), axes_of(dim, x.ndim), keepdims=keepdim)


def _mean(result: Result, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return jnp.mean(cast(x, result.dtype), axes_of(dim, x.ndim), keepdims=keepdim)


def _product(result: Result, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return jnp.prod(cast(x, result.dtype), axes_of(dim, x.ndim), keepdims=keepdim)


def _extreme(function: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return function(x, axes_of(dim, x.ndim), keepdims=keepdim)

    return lowering


def _extreme_with_index(extreme: Callable[..., Any], index: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, x: Any, dim: int, keepdim: bool = False) -> Any:
        axis = axis_of(dim, x.ndim)
        return extreme(x, axis, keepdims=keepdim), index(x, axis, keepdims=keepdim)

    return lowering


def _index_of(function: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        return function(x, dim, keepdims=keepdim)

    return lowering


def _truth(x: Any) -> Any:
    return x if x.dtype == np.bool_ else lax.ne(x, jnp.zeros_like(x))


def _quantifier(function: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return function(_truth(x), axes_of(dim, x.ndim), keepdims=keepdim)

    return lowering


def variance(x: Any, axes: tuple[int, ...], correction: float, keepdims: bool) -> Any:
    """The mean squared deviation from the mean over some axes.

    Arguments:
        x: array.
        axes: what to average over.
        correction: what is taken off the number of elements.
        keepdims: whether the axes stay, of length one.
    """
    centered = x - jnp.mean(x, axes, keepdims=True)
    count = _number_of(x, axes)
    total = jnp.sum(lax.square(centered), axes, keepdims=keepdims)
    return total / max(count - correction, 1e-12)


def _options(x: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, float, bool]:
    """Axes, correction and keepdim of the overloads of var and std."""
    args, named = tuple(args), dict(named)
    dim = named.get("dim")
    correction: Any = named.get("correction", 1)
    keepdim = named.get("keepdim", False)
    if args and isinstance(args[0], bool):
        correction = int(args[0])
    elif args:
        dim = args[0]
        if len(args) > 1 and isinstance(args[1], bool):
            correction = int(args[1])
        if len(args) > 2:
            keepdim = args[2]
    if "unbiased" in named:
        correction = int(named["unbiased"])
    return axes_of(dim, x.ndim), 1.0 if correction is None else float(correction), bool(keepdim)


def _var(result: Result, x: Any, *args: Any, **named: Any) -> Any:
    return variance(x, *_options(x, args, named))


def _std(result: Result, x: Any, *args: Any, **named: Any) -> Any:
    return lax.sqrt(variance(x, *_options(x, args, named)))


def _var_mean(result: Result, x: Any, *args: Any, **named: Any) -> Any:
    axes, correction, keepdim = _options(x, args, named)
    return variance(x, axes, correction, keepdim), jnp.mean(x, axes, keepdims=keepdim)


def _std_mean(result: Result, x: Any, *args: Any, **named: Any) -> Any:
    moment, mean = _var_mean(result, x, *args, **named)
    return lax.sqrt(moment), mean


def _norm(
    result: Result, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    axes = axes_of(dim, x.ndim)
    x = cast(x, result.dtype)
    if order is None or order == 2 or order == "fro":
        return lax.sqrt(jnp.sum(lax.square(x), axes, keepdims=keepdim))
    magnitude = jnp.abs(x)
    if order == 1:
        return jnp.sum(magnitude, axes, keepdims=keepdim)
    if order == float("inf"):
        return jnp.max(magnitude, axes, keepdims=keepdim)
    if order == float("-inf"):
        return jnp.min(magnitude, axes, keepdims=keepdim)
    return jnp.sum(magnitude**order, axes, keepdims=keepdim) ** (1.0 / order)


def _logsumexp(result: Result, x: Any, dim: Any, keepdim: bool = False) -> Any:
    axes = axes_of(dim, x.ndim)
    return jax.nn.logsumexp(cast(x, result.dtype), axes, keepdims=keepdim)


def _softmax(result: Result, x: Any, dim: int, *_: Any, **__: Any) -> Any:
    return jax.nn.softmax(cast(x, result.dtype), axis_of(dim, x.ndim)) if x.ndim else x * 0 + 1


def _log_softmax(result: Result, x: Any, dim: int, *_: Any, **__: Any) -> Any:
    return jax.nn.log_softmax(cast(x, result.dtype), axis_of(dim, x.ndim))


def _cumulative(function: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, x: Any, dim: int, **_: Any) -> Any:
        return function(cast(x, result.dtype), axis_of(dim, x.ndim))

    return lowering


def _top_k(
    result: Result, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    axis = axis_of(dim, x.ndim)
    moved = jnp.moveaxis(x, axis, -1)
    values, places = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(places, -1, axis)


def sort_with_index(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Sorted elements along an axis and the places they came from.

    Arguments:
        x: array.
        dim: the axis.
        descending: whether the largest comes first.
    """
    axis = axis_of(dim, x.ndim)
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    if x.dtype == np.bool_:
        values, order = sort_with_index(x.astype(np.int32), dim, descending)
        return values.astype(np.bool_), order
    values, order = lax.sort((-x if descending else x, places), dimension=axis, num_keys=1)
    return (-values if descending else values), order


def _sort(
    result: Result, x: Any, dim: int = -1, descending: bool = False, **named: Any
) -> tuple[Any, Any]:
    return sort_with_index(x, named.get("dim", dim), named.get("descending", descending))


def _sort_stable(
    result: Result, x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Any, Any]:
    return sort_with_index(x, dim, descending)


def _argsort(result: Result, x: Any, dim: int = -1, descending: bool = False, **named: Any) -> Any:
    return sort_with_index(x, named.get("dim", dim), named.get("descending", descending))[1]


def _count_nonzero(result: Result, x: Any, dim: Any = None) -> Any:
    return jnp.sum(_truth(x).astype(np.int32), axes_of(dim, x.ndim))


def _histogram(result: Result, x: Any, *args: Any, **_: Any) -> Any:
    """Counts of numbers in bins: integers, or whole numbers in the dtype of what is counted."""
    bins = result.shape[0]
    rows = lax.broadcasted_iota(np.int32, (bins, x.size), 0)
    flat = cast(x.reshape(-1), np.dtype(np.int32))
    return jnp.sum(cast(rows == flat[None, :], result.dtype), 1)


def _reduced(loss: Any, reduction: int) -> Any:
    return loss if reduction == 0 else jnp.mean(loss) if reduction == 1 else jnp.sum(loss)


def _mse_loss(result: Result, x: Any, target: Any, reduction: int = 1) -> Any:
    return _reduced(lax.square(x - target), reduction)


def _nll_loss(
    result: Result,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignored: int = -100,
) -> Any:
    axis = 1 if x.ndim > 1 else 0
    index = jnp.expand_dims(jnp.maximum(target, 0), axis)
    loss = -jnp.squeeze(jnp.take_along_axis(x, index, axis, mode="clip"), axis)
    return _reduced(loss, reduction)


def _cross_entropy(
    result: Result,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> Any:
    logits = jax.nn.log_softmax(x, 1 if x.ndim > 1 else 0)
    if jnp.issubdtype(target.dtype, np.inexact):
        return _reduced(-jnp.sum(logits * target, 1 if x.ndim > 1 else 0), reduction)
    return _nll_loss(result, logits, target, weight, reduction, ignored)


LOWERINGS: dict[str, Lowering] = {
    "_log_softmax.default": _log_softmax,
    "_safe_softmax.default": _softmax,
    "_softmax.default": _softmax,
    "all.default": _quantifier(jnp.all),
    "all.dim": _quantifier(jnp.all),
    "all.dims": _quantifier(jnp.all),
    "amax.default": _extreme(jnp.max),
    "amin.default": _extreme(jnp.min),
    "any.default": _quantifier(jnp.any),
    "any.dim": _quantifier(jnp.any),
    "any.dims": _quantifier(jnp.any),
    "argmax.default": _index_of(jnp.argmax),
    "argmin.default": _index_of(jnp.argmin),
    "argsort.default": _argsort,
    "argsort.stable": _argsort,
    "bincount.default": _histogram,
    "count_nonzero.default": _count_nonzero,
    "count_nonzero.dim_IntList": _count_nonzero,
    "cross_entropy_loss.default": _cross_entropy,
    "cumprod.default": _cumulative(lax.cumprod),
    "cumsum.default": _cumulative(lax.cumsum),
    "frobenius_norm.dim": lambda result, x, dim, keepdim=False: _norm(result, x, 2, dim, keepdim),
    "histc.default": _histogram,
    "linalg_norm.default": _norm,
    "linalg_vector_norm.default": _norm,
    "log_softmax.int": _log_softmax,
    "logcumsumexp.default": _cumulative(lax.cumlogsumexp),
    "logsumexp.default": _logsumexp,
    "max.default": _extreme(jnp.max),
    "max.dim": _extreme_with_index(jnp.max, jnp.argmax),
    "mean.default": _mean,
    "mean.dim": _mean,
    "min.default": _extreme(jnp.min),
    "min.dim": _extreme_with_index(jnp.min, jnp.argmin),
    "mse_loss.default": _mse_loss,
    "nll_loss.default": _nll_loss,
    "nll_loss_nd.default": _nll_loss,
    "norm.Scalar": _norm,
    "norm.ScalarOpt_dim": _norm,
    "prod.default": _product,
    "prod.dim_int": _product,
    "softmax.int": _softmax,
    "sort.default": _sort,
    "sort.stable": _sort_stable,
    "std.correction": _std,
    "std.default": _std,
    "std.dim": _std,
    "std_mean.correction": _std_mean,
    "sum.default": _sum,
    "sum.dim_IntList": _sum,
    "topk.default": _top_k,
    "var.correction": _var,
    "var.default": _var,
    "var.dim": _var,
    "var_mean.correction": _var_mean,
    "var_mean.dim": _var_mean,
}
