"""Runs one operation of a graph by TensorFlow itself, on numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def execute(operation: tf.Operation, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of an operation.

    Arguments:
        operation: an operation of a graph; it is left alone.
        inputs: its inputs.

    Raises:
        NotImplementedError: TensorFlow does not offer the operation on its own, or running it
            changes something: a random state, or whatever a function of the user's does.
    """
    function = getattr(tf.raw_ops, operation.type, None)
    definition = operation.op_def
    if function is None or definition.is_stateful:
        raise NotImplementedError(
            f"The operator {operation.type} cannot be run on its own, so nothing behind it can be "
            "measured; nothing was changed. Use mode='analytic' for this model."
        )
    with tf.init_scope(), tf.device("CPU"):
        tensors = iter(
            tf.cast(tf.constant(value), tensor.dtype)
            for value, tensor in zip(inputs, operation.inputs, strict=True)
        )
        arguments: dict[str, Any] = {}
        implied = set()
        for argument in definition.input_arg:
            implied |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
            if argument.number_attr:
                count = operation.get_attr(argument.number_attr)
            elif argument.type_list_attr:
                count = len(operation.get_attr(argument.type_list_attr))
            else:
                arguments[argument.name] = next(tensors)
                continue
            arguments[argument.name] = [next(tensors) for _ in range(count)]
        for attribute in definition.attr:
            if attribute.name not in implied:
                arguments[attribute.name] = operation.get_attr(attribute.name)
        results = function(**_renamed(function, arguments))
        listed = results if isinstance(results, (list, tuple)) else [results]
        return [np.asarray(result.numpy()) for result in listed]


def _renamed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments by the names that Python has for them, which differ for a few operators."""
    taken = [name for name in inspect.signature(function).parameters if name != "name"]
    others = iter(name for name in taken if name not in arguments)
    return {name if name in taken else next(others): arguments[name] for name in arguments}
