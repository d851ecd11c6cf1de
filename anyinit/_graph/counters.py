"""Loop counters as numbers: integer arithmetic on known scalars, done while a loop is written out.

A counter tells how often a ``while`` runs, which branch a step takes and which layer of a stacked
weight it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyinit._graph.graph import Builder

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rem": np.fmod,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "convert_element_type": lambda number: number,
    "squeeze": lambda number: number,
    "clamp": lambda low, number, high: np.minimum(np.maximum(number, low), high),
    "select_n": lambda predicate, *cases: cases[int(predicate)],
    # XLA rounds towards zero.
    "div": lambda left, right: np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right)),
}


def counted(builder: Builder, equation: Any, inputs: Sequence[int]) -> int | None:
    """The value of an equation on known integers, as a literal; ``None`` for any other equation.

    Arguments:
        builder: holds the known numbers.
        equation: an equation of the jaxpr.
        inputs: values that it reads.
    """
    function = _ARITHMETIC.get(equation.primitive.name)
    if function is None or not inputs:
        return None
    aval = equation.outvars[0].aval
    numbers = [builder.literals.get(value) for value in inputs]
    whole = all(n is not None and n.ndim == 0 and n.dtype.kind in "iub" for n in numbers)
    if not whole or aval.shape != () or np.dtype(aval.dtype).kind not in "iub":
        return None
    if equation.primitive.name == "div" and not numbers[1]:
        return None
    with np.errstate(over="ignore"):
        result = np.asarray(function(*numbers)).astype(aval.dtype)
    return builder.literal(result, aval)
