"""What a recording of a forward pass holds: functional operator calls on numbered values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the recording, in the place of one among a call's arguments.

    Arguments:
        number: which one.
    """

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One operator applied to values.

    Arguments:
        operator: its name: ``add.Tensor`` for ATen, ``namespace.name.overload`` for others.
        args: positional arguments, with a ``Value`` for each tensor.
        kwargs: keyword arguments, likewise.
        outputs: the value of each tensor among the results, ``None`` for other results.
        where: ``file.py:line`` of the model's source.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    where: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A recorded forward pass.

    Arguments:
        calls: in order of execution, without what no output depends on.
        shapes: shape of each value.
        dtypes: NumPy dtype of each value.
        constants: tensors that are neither parameters nor inputs, by value.
        parameters: the values of the parameters, in the order in which they were given.
        inputs: the values of the inputs, likewise.
        outputs: the values of the results.
    """

    calls: tuple[Call, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    constants: Mapping[int, torch.Tensor]
    parameters: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def map_values(function: Callable[[Value], Any], argument: Any) -> Any:
    """Replace every value among a call's arguments.

    >>> map_values(lambda value: value.number, (Value(3), [Value(4)], "sum"))
    (3, [4], 'sum')

    Arguments:
        function: called with each value.
        argument: an argument, or a tuple, list or dictionary of arguments.
    """
    if isinstance(argument, Value):
        return function(argument)
    if isinstance(argument, (tuple, list)):
        return type(argument)(map_values(function, item) for item in argument)
    if isinstance(argument, Mapping):
        return {key: map_values(function, item) for key, item in argument.items()}
    return argument


def values_in(argument: Any) -> list[int]:
    """The numbers of the values among a call's arguments.

    Arguments:
        argument: as for ``map_values``.
    """
    found: list[int] = []
    map_values(lambda value: found.append(value.number), argument)
    return found


def live_calls(calls: list[Call], outputs: tuple[int, ...]) -> tuple[Call, ...]:
    """The calls that an output depends on.

    Arguments:
        calls: all calls in order.
        outputs: the values wanted.
    """
    needed = set(outputs)
    kept = []
    for call in reversed(calls):
        if needed.intersection(number for number in call.outputs if number is not None):
            needed.update(values_in((call.args, call.kwargs)))
            kept.append(call)
    return tuple(reversed(kept))
