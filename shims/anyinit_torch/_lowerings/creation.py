"""Tensors made from nothing: fills, ranges and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, cast


def _filled(value: float) -> Lowering:
    return lambda result, *_, **__: jnp.full(result.shape, value, result.dtype)


def _full(result: Result, *args: Any, **_: Any) -> Any:
    return jnp.broadcast_to(cast(args[-1], result.dtype), result.shape)


def _scalar(result: Result, value: Any, *_: Any, **__: Any) -> Any:
    return jnp.asarray(cast(value, result.dtype))


def _count(result: Result) -> Any:
    return lax.iota(np.int32, result.shape[0])


def _arange(result: Result, *limits: Any, **_: Any) -> Any:
    start = limits[0] if len(limits) > 1 else 0
    step = limits[2] if len(limits) > 2 else 1
    numbers = cast(_count(result), result.dtype)
    if step != 1:
        numbers = numbers * cast(step, result.dtype)
    return numbers if start == 0 else numbers + cast(start, result.dtype)


def _linspace(result: Result, start: Any, end: Any, steps: int, **_: Any) -> Any:
    numbers = cast(_count(result), result.dtype)
    return numbers * ((end - start) / max(steps - 1, 1)) + start


def _eye(result: Result, *_: Any, **__: Any) -> Any:
    return jnp.eye(result.shape[0], result.shape[1], dtype=result.dtype)


def _triangle_indices(function: Callable[..., Any]) -> Lowering:
    def lowering(result: Result, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
        return np.stack(function(rows, offset, columns)).astype(result.dtype)

    return lowering


def _uniform(result: Result, *_: Any, **__: Any) -> Any:
    return cast(jax.random.uniform(result.key(), result.shape), result.dtype)


def _uniform_between(result: Result, x: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return _uniform(result) * (high - low) + low


def _normal(result: Result, *_: Any, **__: Any) -> Any:
    return cast(jax.random.normal(result.key(), result.shape), result.dtype)


def _normal_around(result: Result, x: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
    return _normal(result) * std + mean


def _exponential(result: Result, x: Any, rate: float = 1.0, **_: Any) -> Any:
    return -lax.log(1 - _uniform(result)) / rate


def _integers(result: Result, *args: Any, **_: Any) -> Any:
    numbers = [argument for argument in args if isinstance(argument, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    return cast(jax.random.randint(result.key(), result.shape, low, high), result.dtype)


def _permutation(result: Result, *_: Any, **__: Any) -> Any:
    return cast(jnp.argsort(jax.random.uniform(result.key(), result.shape)), result.dtype)


def _bernoulli(result: Result, x: Any, p: Any = None, **_: Any) -> Any:
    """Ones with a given probability: a number, or as many as there are elements."""
    share = x if p is None else p
    if not isinstance(share, (int, float)):
        share = jnp.broadcast_to(cast(share, np.dtype(np.float32)), result.shape)
        return cast(jax.random.uniform(result.key(), result.shape) < share, result.dtype)
    return cast(jax.random.bernoulli(result.key(), share, result.shape), result.dtype)


def _multinomial(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    return cast(jax.random.randint(result.key(), result.shape, 0, x.shape[-1]), result.dtype)


def _dropped(result: Result, x: Any, kept: Any, p: float) -> Any:
    return lax.select(kept, x / (1.0 - p), jnp.zeros_like(x))


def _dropout(result: Result, x: Any, p: float, train: bool | None = True) -> Any:
    if not train or p == 0:
        return x
    if p >= 1:
        return jnp.zeros_like(x)
    return _dropped(result, x, jax.random.bernoulli(result.key(), 1.0 - p, x.shape), p)


def _feature_dropout(result: Result, x: Any, p: float, train: bool = True) -> Any:
    """Whole channels are dropped."""
    if not train or p == 0:
        return x
    shape = x.shape[:2] + (1,) * (x.ndim - 2)
    kept = jax.random.bernoulli(result.key(), 1.0 - p, shape)
    return _dropped(result, x, jnp.broadcast_to(kept, x.shape), p)


def _native_dropout(result: Result, x: Any, p: float, train: bool | None = True) -> Any:
    return _dropout(result, x, p, train), jnp.ones(x.shape, np.bool_)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        """zeros.default zeros_like.default new_zeros.default empty.memory_format
        empty_like.default new_empty.default empty_permuted.default empty_strided.default
        new_empty_strided.default""".split(),
        _filled(0),
    ),
    **dict.fromkeys("ones.default ones_like.default new_ones.default".split(), _filled(1)),
    **dict.fromkeys("full.default full_like.default new_full.default".split(), _full),
    **dict.fromkeys("arange.default arange.start arange.start_step".split(), _arange),
    **dict.fromkeys("rand.default rand_like.default rand.generator".split(), _uniform),
    **dict.fromkeys(
        "randn.default randn_like.default randn.generator normal_functional.default".split(),
        _normal,
    ),
    **dict.fromkeys(
        """randint.default randint.low randint_like.default randint_like.low_dtype
        random.default random.from random.to""".split(),
        _integers,
    ),
    **dict.fromkeys(
        "bernoulli.default bernoulli.p bernoulli.float bernoulli.Tensor".split(), _bernoulli
    ),
    **dict.fromkeys("alpha_dropout.default dropout.default".split(), _dropout),
    "exponential.default": _exponential,
    "eye.default": _eye,
    "eye.m": _eye,
    "feature_dropout.default": _feature_dropout,
    "linspace.default": _linspace,
    "multinomial.default": _multinomial,
    "native_dropout.default": _native_dropout,
    "normal.default": _normal_around,
    "randperm.default": _permutation,
    "scalar_tensor.default": _scalar,
    "tril_indices.default": _triangle_indices(np.tril_indices),
    "triu_indices.default": _triangle_indices(np.triu_indices),
    "uniform.default": _uniform_between,
}
