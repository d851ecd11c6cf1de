"""An operator without a lowering, as one JAX primitive, which TensorFlow itself executes.

The analysis tries it on small arrays, and reports it by name where that is not possible.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend import core as jex_core

from anyinit._graph.callback import callback_primitive
from anyinit_tensorflow._execute import execute
from anyinit_tensorflow._operation import NotStaticError, dtype_of, shape_of


@dataclasses.dataclass(frozen=True, eq=False)
class _Execution:
    """One operation, run by TensorFlow.

    Arguments:
        operation: the operation.
        specs: shape and dtype of each result.
    """

    operation: tf.Operation
    specs: tuple[tuple[tuple[int, ...], Any], ...]

    def __repr__(self) -> str:
        return str(self.operation.type)

    def __call__(self, *operands: Any) -> list[np.ndarray]:
        results = execute(self.operation, [np.asarray(operand) for operand in operands])
        return [
            array.astype(dtype).reshape(shape)
            for array, (shape, dtype) in zip(results, self.specs, strict=True)
        ]


def opaque(operation: tf.Operation, operands: Sequence[Any]) -> list[Any]:
    """Apply the primitive that stands for an unknown operator.

    Arguments:
        operation: the operation.
        operands: its inputs.

    Raises:
        NotStaticError: the graph does not know the shape of a result.
    """
    shapes = [shape_of(output) for output in operation.outputs]
    if None in shapes:
        raise NotStaticError(f"the shape of {operation.name}")
    dtypes = [dtype_of(output) for output in operation.outputs]
    specs: Any = tuple(zip(shapes, dtypes, strict=True))
    arrays = [jax.numpy.asarray(operand) for operand in operands]
    bound = _primitive(operation.type).bind(  # type: ignore[no-untyped-call]
        *arrays, execution=_Execution(operation, specs)
    )
    return list(bound)


@functools.cache
def _primitive(operator: str) -> jex_core.Primitive:
    def evaluate(*operands: Any, execution: _Execution) -> list[Any]:
        return [jax.numpy.asarray(result) for result in execution(*operands)]

    primitive = callback_primitive(operator)
    # The analysis tries it on small arrays of the right shapes.
    primitive.def_impl(evaluate)  # type: ignore[no-untyped-call]
    return primitive
