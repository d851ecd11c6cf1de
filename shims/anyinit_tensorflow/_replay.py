"""Runs a graph in JAX, inside whatever traces it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from anyinit._graph.source import located
from anyinit_tensorflow._branches import BRANCHES
from anyinit_tensorflow._execute import execute
from anyinit_tensorflow._loop import LOOPS
from anyinit_tensorflow._lowerings.lists import Reserved
from anyinit_tensorflow._lowerings.table import DRAWING, LOWERINGS
from anyinit_tensorflow._opaque import opaque
from anyinit_tensorflow._operation import NotStaticError, Operation, dtype_of, shape_of
from anyinit_tensorflow._source_line import made_by

# Constants up to this many elements are computed at once, by TensorFlow itself.
_LARGEST = 1 << 20

_HANDLES = (tf.resource, tf.variant)

_READS = frozenset({"ReadVariableOp", "ResourceGather"})


@dataclasses.dataclass(frozen=True)
class _Held:
    """What a variable holds, in the place of its handle.

    Arguments:
        value: a JAX value or NumPy array.
    """

    value: Any


def replay(
    function: Any, inputs: Sequence[Any], key: Any, handles: Sequence[Any] = ()
) -> list[Any]:
    """The results of a concrete function, as JAX values.

    Arguments:
        function: a ``tf.ConcreteFunction`` without structure: its inputs and outputs are tensors.
        inputs: a JAX value for each of its own inputs.
        key: random key, from which every random operator draws its own.
        handles: handles of the variables whose values the first inputs are. A graph that the
            model has made before, in a ``tf.function`` of its own, reads them by these.

    Raises:
        ValueError: if the graph needs a number for a shape that is not known before it runs.
    """
    graph = function.graph
    held = {id(handle): value for handle, value in zip(handles, inputs, strict=False)}
    captured = [_captured(tensor, held) for tensor in function.captured_inputs]
    try:
        return Run(key).evaluate(graph.inputs, [*inputs, *captured], graph.outputs)
    except NotStaticError as error:
        raise ValueError(
            f"The graph that TensorFlow made of the model needs {error} as a number, which is not "
            "known before it runs; nothing was changed. Pass an input whose shape decides it."
        ) from error


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a graph and of the graphs that its operations call.

    Arguments:
        key: random key.
    """

    key: Any

    def evaluate(
        self, inputs: Sequence[Any], values: Sequence[Any], wanted: Sequence[Any]
    ) -> list[Any]:
        """The values of tensors of a graph.

        Arguments:
            inputs: tensors that are known.
            values: their values; ``None`` for those that are not known after all.
            wanted: the tensors.

        Raises:
            KeyError: one depends on an input that is not known.
        """
        known = {t.ref(): v for t, v in zip(inputs, values, strict=True) if v is not None}
        for operation in _needed(wanted, known):
            results = self._results(operation, [known[t.ref()] for t in operation.inputs])
            for tensor, result in zip(operation.outputs, results, strict=False):
                known[tensor.ref()] = _conformed(result, tensor)
        return [known[tensor.ref()] for tensor in wanted]

    def _results(self, operation: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
        if operation.type == "Placeholder":
            raise KeyError(operation.name)
        if operation.type == "Const":
            return [tf.make_ndarray(operation.get_attr("value"))]
        if _is_constant(operation, values):
            return execute(operation, values)
        with located(made_by(operation)):
            structured = LOOPS.get(operation.type) or BRANCHES.get(operation.type)
            if structured is not None:
                return structured(self, operation, values)
            if operation.type in _READS:
                return self._read(operation, values)
            if operation.type not in LOWERINGS:
                return opaque(operation, values)
            return self._lowered(operation, operation.type, values)

    def _lowered(self, operation: tf.Operation, name: str, values: Sequence[Any]) -> Sequence[Any]:
        number = functools.partial(_number, operation)
        seen = Operation(operation, lambda: jax.random.fold_in(self.key, number()))
        try:
            results = LOWERINGS[name](seen, *values)
        except NotStaticError:
            return opaque(operation, values)
        return results if isinstance(results, (tuple, list)) else [results]

    def _read(self, operation: tf.Operation, values: Sequence[Any]) -> Sequence[Any]:
        """What a variable holds; one that belongs to no Keras layer enters as its numbers."""
        array = values[0]
        if isinstance(array, _Held):
            array = array.value
        else:
            dtype = operation.get_attr("dtype")
            array = np.asarray(tf.raw_ops.ReadVariableOp(resource=array, dtype=dtype).numpy())
        if operation.type == "ReadVariableOp":
            return [array]
        return [jax.numpy.asarray(array).at[values[1]].get(mode="promise_in_bounds")]


def _number(operation: tf.Operation) -> int:
    """A number of its own for each operation of a graph."""
    names = [other.name for other in operation.graph.get_operations()]
    return names.index(operation.name)


def _is_constant(operation: tf.Operation, values: Sequence[Any]) -> bool:
    structured = operation.type in LOOPS or operation.type in BRANCHES
    if structured or operation.type in DRAWING or operation.op_def.is_stateful:
        return False
    if not values or not all(isinstance(value, np.ndarray) for value in values):
        return False
    shapes = [shape_of(tensor) for tensor in operation.outputs]
    plain = all(tensor.dtype not in _HANDLES for tensor in operation.outputs)
    return plain and all(s is None or np.prod(s, dtype=float) <= _LARGEST for s in shapes)


def _needed(wanted: Sequence[Any], known: Mapping[Any, Any]) -> list[tf.Operation]:
    """The operations that compute tensors from what is known, in order."""
    found: dict[str, tf.Operation] = {}
    pending = [tensor.op for tensor in wanted if tensor.ref() not in known]
    while pending:
        operation = pending.pop()
        if operation.name not in found:
            found[operation.name] = operation
            pending += [t.op for t in operation.inputs if t.ref() not in known]
    if not found:
        return []
    graph = next(iter(found.values())).graph
    return [operation for operation in graph.get_operations() if operation.name in found]


def _captured(tensor: Any, held: Mapping[int, Any]) -> Any:
    """A tensor from outside of the graph: a constant, or a handle."""
    if id(tensor) in held:
        return _Held(held[id(tensor)])
    return tensor if tensor.dtype in _HANDLES else np.asarray(tensor.numpy())


def _conformed(value: Any, tensor: Any) -> Any:
    """A result with the dtype and shape that TensorFlow has found."""
    if isinstance(value, (Reserved, _Held, np.ndarray)) or tensor.dtype in _HANDLES:
        return value
    value = jax.numpy.asarray(value)
    if value.dtype != dtype_of(tensor):
        value = jax.lax.convert_element_type(value, dtype_of(tensor))
    shape = shape_of(tensor)
    return value if shape is None or value.shape == shape else value.reshape(shape)
