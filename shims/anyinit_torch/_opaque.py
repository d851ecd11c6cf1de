"""An operator without a lowering, as one JAX primitive that the analysis reports by name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jex_core


def opaque(
    operator: str, operands: Sequence[Any], outputs: Sequence[jax.ShapeDtypeStruct | None]
) -> list[Any]:
    """Apply the primitive that stands for an unknown operator.

    Arguments:
        operator: name of the operator.
        operands: its array arguments.
        outputs: shape and dtype of its results; ``None`` for those that are no tensor.

    Returns:
        One abstract result for each output, ``None`` in the same places.
    """
    specs = tuple((tuple(o.shape), o.dtype) for o in outputs if o is not None)
    results = iter(_primitive(operator).bind(*operands, specs=specs))  # type: ignore[no-untyped-call]
    return [None if output is None else next(results) for output in outputs]


@functools.cache
def _primitive(operator: str) -> jex_core.Primitive:
    primitive = jex_core.Primitive(operator)
    primitive.multiple_results = True

    def specify(*operands: Any, specs: Any) -> list[Any]:
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in specs]

    primitive.def_abstract_eval(specify)  # type: ignore[no-untyped-call]

    return primitive
