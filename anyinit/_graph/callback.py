"""A primitive that a callback executes: what another framework computes and JAX does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import mlir


class Execution(Protocol):
    """Runs one operator on arrays.

    Arguments:
        specs: shape and dtype of each result.
    """

    @property
    def specs(self) -> Sequence[tuple[tuple[int, ...], Any]]: ...

    def __call__(self, *operands: Any) -> list[np.ndarray]: ...


def callback_primitive(operator: str) -> jex_core.Primitive:
    """A primitive of several results, which is bound with an ``Execution`` of that name.

    It is executed where real arrays are run, and named in reports.

    Arguments:
        operator: its name.
    """
    primitive = jex_core.Primitive(operator)
    primitive.multiple_results = True

    def specify(*operands: Any, execution: Execution) -> list[Any]:
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in execution.specs]

    def run(*operands: Any, execution: Execution) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(*spec) for spec in execution.specs]  # type: ignore[no-untyped-call]
        return list(jax.pure_callback(execution, shapes, *operands))

    primitive.def_abstract_eval(specify)  # type: ignore[no-untyped-call]
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    return primitive
