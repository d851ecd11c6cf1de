"""Runs a recorded program in JAX, inside whatever traces it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from anyinit._graph.source import located
from anyinit_torch._lowerings.lowering import Result, abstract_value
from anyinit_torch._lowerings.table import LOWERINGS
from anyinit_torch._opaque import opaque
from anyinit_torch._program import Call, Program, map_values, values_in

# Arguments about where and how a tensor is kept; shapes and dtypes are known from the recording.
_PLACEMENT = frozenset(
    """dtype layout device pin_memory memory_format generator non_blocking copy implicit out_dtype
    device_hint""".split()
)


def is_lowered(operator: str) -> bool:
    """Whether an operator has a lowering."""
    return operator in LOWERINGS


def replay(
    program: Program,
    leaves: Sequence[Any],
    inputs: Sequence[Any],
    constants: Mapping[int, Any],
    key: Any,
) -> list[Any]:
    """The results of a program, as JAX values.

    Arguments:
        program: the recording.
        leaves: a JAX value for each parameter.
        inputs: a JAX value for each input.
        constants: a JAX value or NumPy array for each constant.
        key: random key, from which every random operator draws its own.

    Returns:
        A JAX value for each output of the program.
    """
    known: dict[int, Any] = dict(constants)
    known.update(zip(program.parameters, leaves, strict=True))
    known.update(zip(program.inputs, inputs, strict=True))
    for number, call in enumerate(program.calls):
        outputs = tuple(_abstract(program, output) for output in call.outputs)
        result = Result(outputs, functools.partial(_folded, key, number))
        with located(call.where):
            results = _lowered(call, result, known)
        for output, value, abstract in zip(call.outputs, results, outputs, strict=False):
            if output is not None and abstract is not None:
                with located(call.where):
                    known[output] = _conformed(value, abstract)
    return [jax.numpy.asarray(known[output]) for output in program.outputs]


def _lowered(call: Call, result: Result, known: Mapping[int, Any]) -> Sequence[Any]:
    if not is_lowered(call.operator):
        operands = [known[number] for number in values_in((call.args, call.kwargs))]
        return opaque(call, operands, result.outputs)
    args = map_values(lambda value: _array(known[value.number]), call.args)
    kwargs = {
        name: map_values(lambda value: _array(known[value.number]), argument)
        for name, argument in call.kwargs.items()
        if name not in _PLACEMENT
    }
    results = LOWERINGS[call.operator](result, *args, **kwargs)
    return results if isinstance(results, (tuple, list)) else (results,)


def _array(value: Any) -> Any:
    """Constants as JAX arrays, so that every lowering may index and shape them."""
    return jax.numpy.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _conformed(value: Any, abstract: jax.ShapeDtypeStruct) -> Any:
    """A result with the dtype and shape that torch has found."""
    value = jax.numpy.asarray(value)
    if value.dtype != abstract.dtype:
        value = jax.lax.convert_element_type(value, abstract.dtype)
    if value.shape != abstract.shape:
        value = value.reshape(abstract.shape)
    return value


def _abstract(program: Program, number: int | None) -> jax.ShapeDtypeStruct | None:
    if number is None:
        return None
    return abstract_value(program.shapes[number], program.dtypes[number])


def _folded(key: Any, number: int) -> Any:
    return jax.random.fold_in(key, number)
