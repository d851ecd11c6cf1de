"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anyinit_tensorflow._operation import Lowering, Operation


def _unary(function: Callable[[Any], Any]) -> Lowering:
    return lambda operation, x: function(x)


def _binary(function: Callable[[Any, Any], Any]) -> Lowering:
    return lambda operation, x, y: function(*jnp.broadcast_arrays(x, y))


def _leaky_relu(operation: Operation, x: Any) -> Any:
    return jnp.where(x >= 0, x, x * operation.attribute("alpha"))


def _where_zero(function: Callable[[Any, Any], Any], zero: Callable[[Any, Any], Any]) -> Lowering:
    """A function of two, which is zero wherever one of them is."""

    def lowering(operation: Operation, x: Any, y: Any) -> Any:
        x, y = jnp.broadcast_arrays(x, y)
        stop = zero(x, y) == 0
        one = jnp.ones_like(x)
        return jnp.where(stop, 0 * one, function(jnp.where(stop, one, x), jnp.where(stop, one, y)))

    return lowering


def _select(operation: Operation, condition: Any, x: Any, y: Any) -> Any:
    if condition.ndim < jnp.ndim(x):  # the older Select: one condition a row
        tail = (1,) * (jnp.ndim(x) - condition.ndim)
        older = operation.raw.type == "Select"
        condition = condition.reshape(condition.shape + tail) if older else condition
    return jnp.where(condition, x, y)


def _add_n(operation: Operation, *terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": jnp.abs,
    "Acos": lax.acos,
    "Acosh": lax.acosh,
    "Asin": lax.asin,
    "Asinh": lax.asinh,
    "Atan": lax.atan,
    "Atanh": lax.atanh,
    "Ceil": lax.ceil,
    "Cos": lax.cos,
    "Cosh": lax.cosh,
    "Digamma": lax.digamma,
    "Elu": jax.nn.elu,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Erfinv": lax.erf_inv,
    "Exp": lax.exp,
    "Expm1": lax.expm1,
    "Floor": lax.floor,
    "Inv": lambda x: 1 / x,
    "Invert": lax.bitwise_not,
    "IsFinite": jnp.isfinite,
    "IsInf": jnp.isinf,
    "IsNan": jnp.isnan,
    "Lgamma": lax.lgamma,
    "Log": lax.log,
    "Log1p": lax.log1p,
    "LogicalNot": lax.bitwise_not,
    "Neg": lax.neg,
    "Reciprocal": lambda x: 1 / x,
    "Relu": jax.nn.relu,
    "Relu6": jax.nn.relu6,
    "Rint": jnp.round,
    "Round": jnp.round,
    "Rsqrt": lax.rsqrt,
    "Selu": jax.nn.selu,
    "Sigmoid": jax.nn.sigmoid,
    "Sign": lax.sign,
    "Sin": lax.sin,
    "Sinh": lax.sinh,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
    "Sqrt": lax.sqrt,
    "Square": lax.square,
    "Tan": lax.tan,
    "Tanh": lax.tanh,
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lax.add,
    "AddV2": lax.add,
    "Atan2": lax.atan2,
    "BitwiseAnd": lax.bitwise_and,
    "BitwiseOr": lax.bitwise_or,
    "BitwiseXor": lax.bitwise_xor,
    "Div": lax.div,
    "Equal": lax.eq,
    "FloorDiv": jnp.floor_divide,
    "FloorMod": jnp.mod,
    "Greater": lax.gt,
    "GreaterEqual": lax.ge,
    "LeftShift": lax.shift_left,
    "Less": lax.lt,
    "LessEqual": lax.le,
    "LogicalAnd": lax.bitwise_and,
    "LogicalOr": lax.bitwise_or,
    "Maximum": lax.max,
    "Minimum": lax.min,
    "Mod": lax.rem,
    "Mul": lax.mul,
    "NotEqual": lax.ne,
    "Pow": jnp.power,
    "RealDiv": lax.div,
    "RightShift": lax.shift_right_arithmetic,
    "SquaredDifference": lambda x, y: lax.square(x - y),
    "Sub": lax.sub,
    "TruncateDiv": lax.div,
    "TruncateMod": lax.rem,
}

_SAME = """CheckNumerics EnsureShape Identity PlaceholderWithDefault PreventGradient Snapshot
StopGradient DebugGradientIdentity"""

LOWERINGS: dict[str, Lowering] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: lambda operation, x, *_: x for name in _SAME.split()},
    "AddN": _add_n,
    "Cast": lambda operation, x: jnp.asarray(x).astype(operation.dtype),
    "DivNoNan": _where_zero(lax.div, lambda x, y: y),
    "IdentityN": lambda operation, *values: values,
    "LeakyRelu": _leaky_relu,
    "MulNoNan": _where_zero(lax.mul, lambda x, y: y),
    "Select": _select,
    "SelectV2": _select,
    "Xdivy": _where_zero(lax.div, lambda x, y: x),
    "Xlog1py": _where_zero(lambda x, y: x * lax.log1p(y), lambda x, y: x),
    "Xlogy": _where_zero(lambda x, y: x * lax.log(y), lambda x, y: x),
}
