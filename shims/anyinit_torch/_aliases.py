"""Which tensors share storage, so that what is written through one is seen through the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anyinit_torch._lowerings.views import WRITE
from anyinit_torch._program import Value

Shape = tuple[int, ...]
Specification = tuple[Shape, np.dtype[Any]]

# Appends a call: operator, arguments, keyword arguments, shape and dtype of each result.
Emit = Callable[[str, tuple[Any, ...], Mapping[str, Any], list[Specification | None]], list[int]]


@dataclasses.dataclass(slots=True)
class Cell:
    """What a storage holds: the current value of the whole, and how often it was written."""

    value: int
    specification: Specification
    version: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A view taken of a tensor.

    Arguments:
        operator: the view operator.
        args: its arguments after the tensor.
        kwargs: its keyword arguments.
        results: shape and dtype of its results.
        pick: which result, where there are several.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Specification, ...]
    pick: int | None = None

    @property
    def specification(self) -> Specification:
        """Shape and dtype of the view."""
        return self.results[self.pick or 0]


@dataclasses.dataclass(slots=True)
class ViewPlace:
    """Where a tensor's elements lie: the views that lead from a cell to it."""

    cell: Cell
    steps: tuple[Step, ...]
    value: int
    version: int


def read(place: ViewPlace, emit: Emit) -> int:
    """The current value of a tensor; views of what has been written since are taken again.

    Arguments:
        place: where it lies.
        emit: appends a call.
    """
    if place.version != place.cell.version:
        value = place.cell.value
        for step in place.steps:
            value = _taken(step, value, emit)
        place.value, place.version = value, place.cell.version
    return place.value


def write(place: ViewPlace, value: int, emit: Emit) -> None:
    """Replace the elements of a tensor, in all tensors that share them.

    Arguments:
        place: where it lies.
        value: what it becomes.
        emit: appends a call.
    """
    befores = [place.cell.value]
    for step in place.steps[:-1]:
        befores.append(_taken(step, befores[-1], emit))
    wholes = [place.cell.specification, *(step.specification for step in place.steps[:-1])]
    whole = value
    for before, kept, step in zip(
        reversed(befores), reversed(wholes), reversed(place.steps), strict=False
    ):
        args = (
            Value(before),
            Value(whole),
            step.operator,
            step.args,
            step.kwargs,
            tuple(_Shaped(shape) for shape, _ in step.results),
            step.pick,
        )
        (whole,) = emit(WRITE, args, {}, [kept])
    place.cell.value = whole
    place.cell.version += 1
    place.value, place.version = value, place.cell.version


@dataclasses.dataclass(frozen=True, slots=True)
class _Shaped:
    shape: Shape


def _taken(step: Step, value: int, emit: Emit) -> int:
    results = emit(step.operator, (Value(value), *step.args), step.kwargs, list(step.results))
    return results[step.pick or 0]
