"""Elementwise primitives act on the samples as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._classify.traits import Role, Trait, Traits
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import mixture, place_along

# Entries of an additive mask (−10,000, −1e9, −inf) that switch a position off.
_MASKED = -1e4

_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "is_finite": np.isfinite,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "logistic": lambda x: 0.5 * (np.tanh(0.5 * x) + 1.0),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
    "square": np.square,
    "abs": np.abs,
    "not": np.invert,
    "real": np.real,
    "imag": np.imag,
    "conj": np.conj,
}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "sub": np.subtract,
    "div": np.divide,
    "rem": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": np.right_shift,
}

_INTEGER_DIVISION = {"div": np.floor_divide}


def _unary(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    return [_UNARY[node.primitive](numbers[0])]


def _binary(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    left, right = numbers
    function = _BINARY[node.primitive]
    if node.primitive in ("add", "sub"):
        left, right = _unmasked(traits, node, left, right)
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        function = _INTEGER_DIVISION.get(node.primitive, function)
    return [np.asarray(function(left, right))]


def _add(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    left, right = _unmasked(traits, node, *numbers)
    return [np.asarray(np.add(left, right))]


def _unmasked(traits: Traits, node: Node, left: Any, right: Any) -> tuple[Any, Any]:
    """An additive mask switches positions off; the others keep their values."""
    roles = [traits[value].role for value in node.inputs]
    if Role.SIGNAL not in roles:
        return left, right
    cleaned = [
        np.where(samples <= _MASKED, 0.0, samples)
        if role < Role.WEIGHT and samples.dtype.kind == "f" and samples.ndim > 0
        else samples
        for role, samples in zip(roles, (left, right), strict=True)
    ]
    return cleaned[0], cleaned[1]


def _mul(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    left, right = numbers
    return [np.asarray(np.multiply(left, right))]


def _integer_pow(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    exponent = node.params["y"]
    base = numbers[0].astype(np.float64) if exponent < 0 else numbers[0]
    return [np.asarray(base**exponent)]


def _clamp(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    low, samples, high = numbers
    return [np.asarray(np.minimum(np.maximum(samples, low), high))]


def _round(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    return [np.rint(numbers[0])]


def _convert(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    return [_as_dtype(numbers[0], graph.dtypes[node.outputs[0]])]


def _as_dtype(samples: np.ndarray, dtype: Any) -> np.ndarray:
    """Signals of every width count as float64: rounding is no part of the analysis."""
    if jnp.issubdtype(dtype, np.complexfloating):
        return samples.astype(np.complex128)
    if jnp.issubdtype(dtype, np.floating):
        if samples.ndim == 0 and dtype.itemsize < 4:
            # A constant that the model rounds (√d to bfloat16) is the rounded one.
            samples = samples.real.astype(dtype)
        return samples.real.astype(np.float64, copy=False)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return samples
    return samples.astype(np.int32 if dtype.name in ("int4", "uint4", "int2", "uint2") else dtype)


def _bitcast(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    samples, dtype = numbers[0], graph.dtypes[node.outputs[0]]
    if samples.dtype.itemsize != dtype.itemsize or dtype.kind == "V":
        return [_as_dtype(samples, dtype)]
    return [_as_dtype(samples.view(dtype), dtype)]


def _special(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    import scipy.special  # slow to import, and most models need none of it

    functions = {
        "erf": scipy.special.erf,
        "erfc": scipy.special.erfc,
        "erf_inv": scipy.special.erfinv,
        "lgamma": scipy.special.gammaln,
        "digamma": scipy.special.digamma,
        "igamma": scipy.special.gammainc,
        "igammac": scipy.special.gammaincc,
        "bessel_i0e": scipy.special.i0e,
        "bessel_i1e": scipy.special.i1e,
    }
    return [np.asarray(functions[node.primitive](*numbers))]


def _select(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    """Choose by a known or computed predicate; a fill constant under a mask drops out."""
    predicate, *cases = numbers
    moving = [traits[value] for value in node.inputs[1:]]
    role = traits[node.inputs[0]].role
    if role in (Role.KNOWN, Role.OPAQUE):
        signals = [case for case, trait in zip(cases, moving, strict=True) if trait.moves]
        if len(signals) == 1 and all(_is_fill(c, t) for c, t in zip(cases, moving, strict=True)):
            return [signals[0]]
        if role is Role.OPAQUE:
            shares = [1.0] * len(cases)
            return [mixture(list(cases), shares, *node.outputs)]
    chosen = predicate.astype(np.int64)
    if chosen.ndim == 0:
        return [cases[int(chosen)]]
    broadcast = np.broadcast_arrays(chosen, *cases)
    return [np.choose(broadcast[0], broadcast[1:])]


def _is_fill(case: np.ndarray, trait: Trait) -> bool:
    return trait.moves or case.ndim == 0


def _iota(graph: Graph, traits: Traits, node: Node, numbers: Sequence[Any]) -> list[Any]:
    dimension = node.params["dimension"]
    shape = graph.shapes[node.outputs[0]]
    size = shape[dimension]
    if size == 1:
        return [np.asarray(0).astype(graph.dtypes[node.outputs[0]])]
    return [_as_dtype(place_along(shape, dimension), graph.dtypes[node.outputs[0]])]


RULES = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(
        "erf erfc erf_inv lgamma digamma igamma igammac bessel_i0e bessel_i1e".split(), _special
    ),
    "add": _add,
    "add_any": _add,
    "mul": _mul,
    "integer_pow": _integer_pow,
    "clamp": _clamp,
    "round": _round,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "select_n": _select,
    "iota": _iota,
}
