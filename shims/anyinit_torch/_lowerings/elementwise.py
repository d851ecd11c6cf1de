"""Operators that act element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, cast

_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": jnp.abs,
    "acos": lax.acos,
    "acosh": lax.acosh,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "bitwise_not": jnp.bitwise_not,
    "ceil": jnp.ceil,
    "conj_physical": lax.conj,
    "_conj": lax.conj,
    "conj": lax.conj,
    "cos": lax.cos,
    "cosh": lax.cosh,
    "deg2rad": lambda x: x * (math.pi / 180.0),
    "digamma": lax.digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "exp": lax.exp,
    "exp2": lax.exp2,
    "expm1": lax.expm1,
    "floor": jnp.floor,
    "frac": lambda x: x - jnp.trunc(x),
    "hardsigmoid": lambda x: jnp.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hardswish": lambda x: x * jnp.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "lgamma": lax.lgamma,
    "log": lax.log,
    "log10": lambda x: lax.log(x) * (1.0 / math.log(10.0)),
    "log1p": lax.log1p,
    "log2": lambda x: lax.log(x) * (1.0 / math.log(2.0)),
    "log_sigmoid": lambda x: -_softplus_of(-x),
    "mish": lambda x: x * lax.tanh(_softplus_of(x)),
    "neg": lax.neg,
    "positive": lambda x: x,
    "rad2deg": lambda x: x * (180.0 / math.pi),
    "reciprocal": lambda x: lax.div(jnp.ones_like(x), x),
    "relu": lambda x: lax.max(x, jnp.zeros_like(x)),
    "relu6": lambda x: jnp.clip(x, 0, 6),
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "selu": jax.nn.selu,
    "sgn": lax.sign,
    "sigmoid": lax.logistic,
    "sign": lax.sign,
    "silu": lambda x: x * lax.logistic(x),
    "sin": lax.sin,
    "sinh": lax.sinh,
    "sqrt": lax.sqrt,
    "square": lax.square,
    "tan": lax.tan,
    "tanh": lax.tanh,
    "trunc": jnp.trunc,
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": lax.atan2,
    "bitwise_and": lax.bitwise_and,
    "bitwise_or": lax.bitwise_or,
    "bitwise_xor": lax.bitwise_xor,
    "bitwise_left_shift": lax.shift_left,
    "bitwise_right_shift": lax.shift_right_arithmetic,
    "__lshift__": lax.shift_left,
    "__rshift__": lax.shift_right_arithmetic,
    "__and__": lax.bitwise_and,
    "__or__": lax.bitwise_or,
    "__xor__": lax.bitwise_xor,
    "fmax": lax.max,
    "fmin": lax.min,
    "fmod": lax.rem,
    "floor_divide": lambda x, y: jnp.floor_divide(x, y),
    "hypot": lambda x, y: lax.sqrt(lax.square(x) + lax.square(y)),
    "logaddexp": jnp.logaddexp,
    "logaddexp2": jnp.logaddexp2,
    "maximum": lax.max,
    "minimum": lax.min,
    "mul": lambda x, y: _product(x, y),
    "multiply": lambda x, y: _product(x, y),
    "remainder": lambda x, y: jnp.remainder(x, y),
    "xlogy": lambda x, y: x * lax.log(y),
}

_COMPARISON: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lax.eq,
    "ge": lax.ge,
    "greater": lax.gt,
    "greater_equal": lax.ge,
    "gt": lax.gt,
    "le": lax.le,
    "less": lax.lt,
    "less_equal": lax.le,
    "lt": lax.lt,
    "ne": lax.ne,
    "not_equal": lax.ne,
}

_LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "logical_and": lax.bitwise_and,
    "logical_or": lax.bitwise_or,
    "logical_xor": lax.bitwise_xor,
}


def _product(x: Any, y: Any) -> Any:
    return lax.bitwise_and(x, y) if x.dtype == np.bool_ else lax.mul(x, y)


def _softplus_of(x: Any) -> Any:
    return lax.max(x, jnp.zeros_like(x)) + lax.log1p(lax.exp(-jnp.abs(x)))


def _pair(left: Any, right: Any, dtype: Any) -> tuple[Any, Any]:
    """Both operands in one dtype and one shape; numbers become scalars of that shape."""
    left, right = jnp.broadcast_arrays(cast(left, dtype), cast(right, dtype))
    return left, right


def _unary(function: Callable[[Any], Any]) -> Lowering:
    return lambda result, x, **_: function(cast(x, result.dtype))


def _binary(function: Callable[[Any, Any], Any]) -> Lowering:
    return lambda result, x, y: function(*_pair(x, y, result.dtype))


def _common_dtype(left: Any, right: Any) -> Any:
    """The dtype in which two operands are compared."""
    dtypes = [getattr(operand, "dtype", None) for operand in (left, right)]
    arrays = [dtype for dtype in dtypes if dtype is not None]
    dtype = arrays[0] if len(arrays) == 1 else jnp.promote_types(*arrays)
    numbers = [operand for operand in (left, right) if not hasattr(operand, "dtype")]
    if any(isinstance(n, float) for n in numbers) and not jnp.issubdtype(dtype, np.inexact):
        return np.dtype(np.float32)
    if numbers and dtype == np.bool_ and not isinstance(numbers[0], bool):
        return np.dtype(np.int32)
    return dtype


def _comparison(function: Callable[[Any, Any], Any]) -> Lowering:
    return lambda result, x, y: function(*_pair(x, y, _common_dtype(x, y)))


def _logical(function: Callable[[Any, Any], Any]) -> Lowering:
    return lambda result, x, y: function(*_pair(_truth(x), _truth(y), np.dtype(np.bool_)))


def _truth(x: Any) -> Any:
    return x if x.dtype == np.bool_ else lax.ne(x, jnp.zeros_like(x))


def _logical_not(result: Result, x: Any) -> Any:
    return lax.bitwise_not(_truth(x))


def _add(result: Result, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    x, y = _pair(x, y, result.dtype)
    if result.dtype == np.bool_:
        return lax.bitwise_or(x, y)
    return lax.add(x, y if alpha == 1 else y * cast(alpha, result.dtype))


def _sub(result: Result, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    x, y = _pair(x, y, result.dtype)
    return lax.sub(x, y if alpha == 1 else y * cast(alpha, result.dtype))


def _rsub(result: Result, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(result, y, x, alpha=alpha)


def _div(result: Result, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    x, y = _pair(x, y, result.dtype)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    if rounding_mode == "trunc":
        quotient = lax.div(x, y)
        return jnp.trunc(quotient) if jnp.issubdtype(result.dtype, np.inexact) else quotient
    return lax.div(x, y)


def _power(result: Result, x: Any, exponent: Any) -> Any:
    if isinstance(exponent, (int, float)) and not isinstance(x, (int, float)):
        x = cast(x, result.dtype)
        if exponent == 0.5:
            return lax.sqrt(x)
        if exponent == -0.5:
            return lax.rsqrt(x)
        if float(exponent).is_integer() and abs(exponent) < 64:
            return lax.integer_pow(x, int(exponent))
    x, y = _pair(x, exponent, result.dtype)
    return lax.pow(x, y) if jnp.issubdtype(result.dtype, np.inexact) else jnp.power(x, y)


def _where(result: Result, condition: Any, x: Any = None, y: Any = None) -> Any:
    x, y = (jnp.broadcast_to(cast(operand, result.dtype), result.shape) for operand in (x, y))
    return lax.select(jnp.broadcast_to(_truth(condition), result.shape), x, y)


def _masked_fill(result: Result, x: Any, mask: Any, value: Any) -> Any:
    return _where(result, mask, value, x)


def _clamp(result: Result, x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    x = jnp.broadcast_to(cast(x, result.dtype), result.shape)
    if low is not None:
        x = lax.max(x, jnp.broadcast_to(cast(low, result.dtype), result.shape))
    if high is not None:
        x = lax.min(x, jnp.broadcast_to(cast(high, result.dtype), result.shape))
    return x


def _clamp_min(result: Result, x: Any, low: Any) -> Any:
    return _clamp(result, x, low)


def _clamp_max(result: Result, x: Any, high: Any) -> Any:
    return _clamp(result, x, None, high)


def _hardtanh(result: Result, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return _clamp(result, x, low, high)


def _gelu(result: Result, x: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _leaky_relu(result: Result, x: Any, slope: float = 0.01) -> Any:
    return jnp.where(x > 0, x, x * slope)


def _elu(result: Result, x: Any, alpha: float = 1.0, scale: float = 1.0, inner: float = 1) -> Any:
    return jnp.where(x > 0, x * scale, lax.expm1(lax.min(x * inner, x * 0)) * (alpha * scale))


def _celu(result: Result, x: Any, alpha: float = 1.0) -> Any:
    return jnp.where(x > 0, x, lax.expm1(lax.min(x / alpha, x * 0)) * alpha)


def _softplus(result: Result, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return _softplus_of(x) if beta == 1 else _softplus_of(x * beta) / beta


def _threshold(result: Result, x: Any, threshold: float, value: float) -> Any:
    return jnp.where(x > threshold, x, jnp.full_like(x, value))


def _shrink(result: Result, x: Any, lambd: float = 0.5) -> Any:
    return jnp.where(jnp.abs(x) > lambd, x, jnp.zeros_like(x))


def _softshrink(result: Result, x: Any, lambd: float = 0.5) -> Any:
    return lax.sign(x) * lax.max(jnp.abs(x) - lambd, jnp.zeros_like(x))


def _prelu(result: Result, x: Any, slope: Any) -> Any:
    if slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape((1, -1) + (1,) * (x.ndim - 2))
    return jnp.where(x > 0, x, x * slope)


def _rrelu(result: Result, x: Any, lower: float = 0.125, upper: float = 1 / 3, *_: Any) -> Any:
    return _leaky_relu(result, x, 0.5 * (lower + upper))


def _glu(result: Result, x: Any, axis: int = -1) -> Any:
    left, right = jnp.split(x, 2, axis)
    return left * lax.logistic(right)


def _lerp(result: Result, start: Any, end: Any, weight: Any) -> Any:
    return start + cast(weight, result.dtype) * (end - start)


def _addcmul(result: Result, x: Any, left: Any, right: Any, *, value: Any = 1) -> Any:
    product = left * right
    return x + (product if value == 1 else product * value)


def _addcdiv(result: Result, x: Any, left: Any, right: Any, *, value: Any = 1) -> Any:
    quotient = left / right
    return x + (quotient if value == 1 else quotient * value)


def _logit(result: Result, x: Any, eps: float | None = None) -> Any:
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return lax.log(x / (1 - x))


def _nan_to_num(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _same(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    """The same numbers, in the dtype and shape that torch has found."""
    return jnp.broadcast_to(cast(x, result.dtype), result.shape)


def _copy(result: Result, x: Any, source: Any, *_: Any, **__: Any) -> Any:
    return jnp.broadcast_to(cast(source, result.dtype), result.shape)


def _zero(result: Result, x: Any) -> Any:
    return jnp.zeros(result.shape, result.dtype)


def _number_is(function: Callable[[Any], Any]) -> Lowering:
    return lambda result, x: function(x)


# Dtype changes, copies, markers and placement.
_COPIES = """_to_copy.default to.dtype to.dtype_layout to.device to.other to.prim_Device
    clone.default contiguous.default detach.default alias.default lift_fresh.default lift.default
    lift_fresh_copy.default detach_copy.default alias_copy.default type_as.default cpu.default
    cuda.default float.default _assert_async.default resolve_conj.default resolve_neg.default
    fake_quantize_per_tensor_affine.default""".split()

LOWERINGS: dict[str, Lowering] = {
    **{f"{name}.default": _unary(function) for name, function in _UNARY.items()},
    **{
        f"{name}.{overload}": _binary(function)
        for name, function in _BINARY.items()
        for overload in ("Tensor", "Scalar", "Scalar_Tensor", "default", "Tensor_Scalar")
    },
    **{
        f"{name}.{overload}": _comparison(function)
        for name, function in _COMPARISON.items()
        for overload in ("Tensor", "Scalar")
    },
    **{f"{name}.default": _logical(function) for name, function in _LOGICAL.items()},
    **dict.fromkeys(_COPIES, _same),
    "_thnn_fused_swish.default": _unary(_UNARY["silu"]),
    "add.Scalar": _add,
    "add.Tensor": _add,
    "addcdiv.default": _addcdiv,
    "addcmul.default": _addcmul,
    "celu.default": _celu,
    "clamp.Tensor": _clamp,
    "clamp.default": _clamp,
    "clamp_max.Tensor": _clamp_max,
    "clamp_max.default": _clamp_max,
    "clamp_min.Tensor": _clamp_min,
    "clamp_min.default": _clamp_min,
    "clip.default": _clamp,
    "copy.default": _copy,
    "div.Scalar": _div,
    "div.Scalar_mode": _div,
    "div.Tensor": _div,
    "div.Tensor_mode": _div,
    "divide.Tensor": _div,
    "elu.default": _elu,
    "fill.Scalar": _copy,
    "fill.Tensor": _copy,
    "gelu.default": _gelu,
    "glu.default": _glu,
    "hardshrink.default": _shrink,
    "hardtanh.default": _hardtanh,
    "isfinite.default": _number_is(jnp.isfinite),
    "isinf.default": _number_is(jnp.isinf),
    "isnan.default": _number_is(jnp.isnan),
    "leaky_relu.default": _leaky_relu,
    "lerp.Scalar": _lerp,
    "lerp.Tensor": _lerp,
    "log_sigmoid_forward.default": lambda result, x: (_UNARY["log_sigmoid"](x), x),
    "logical_not.default": _logical_not,
    "logit.default": _logit,
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "nan_to_num.default": _nan_to_num,
    "pow.Scalar": _power,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "_prelu_kernel.default": _prelu,
    "prelu.default": _prelu,
    "relu6.default": _unary(_UNARY["relu6"]),
    "rrelu.default": _rrelu,
    "rsub.Scalar": _rsub,
    "rsub.Tensor": _rsub,
    "softplus.default": _softplus,
    "softshrink.default": _softshrink,
    "special_erf.default": _unary(lax.erf),
    "special_expit.default": _unary(lax.logistic),
    "sub.Scalar": _sub,
    "sub.Tensor": _sub,
    "subtract.Tensor": _sub,
    "threshold.default": _threshold,
    "true_divide.Tensor": _div,
    "xlogy.Scalar_Other": _binary(_BINARY["xlogy"]),
    "xlogy.Scalar_Self": _binary(_BINARY["xlogy"]),
    "where.Scalar": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.self": _where,
    "zero.default": _zero,
}
