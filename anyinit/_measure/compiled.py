"""A graph's computation on a batch as one compiled function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._findings import Finding, Kind
from anyinit._graph.flatten import LOOP_CAP
from anyinit._graph.graph import Graph
from anyinit._plan.analysis import Analysis

# Literals up to this many elements are compiled in, larger ones are passed.
_SMALL = 4096


@dataclasses.dataclass(frozen=True)
class Program:
    """A computation on a batch, which compiles when it is first called.

    Arguments:
        function: of the inputs, the literals and numbers.
        given: the inputs.
        literals: those that are not compiled in.
    """

    function: Any
    given: Sequence[Any]
    literals: Mapping[int, Any]

    def __call__(self, numbers: Any) -> Any:
        """Run it."""
        return self.function(self.given, self.literals, numbers)

    def lower(self, numbers: Any) -> Any:
        """What JAX compiles, for a look at its memory and cost."""
        return self.function.lower(self.given, self.literals, numbers)


def program_of(
    graph: Graph,
    leaves: Sequence[Any],
    arrays: Sequence[Any],
    function: Callable[[dict[int, Any], Any], Any],
) -> Program:
    """A function of a graph's inputs and literals, compiled, with all but its numbers filled in.

    Arguments:
        graph: the flattened model.
        leaves: an array for each parameter.
        arrays: an array for each further input of the graph.
        function: called with the arrays of the inputs and literals, by value, and with numbers.
    """
    large = {v: a for v, a in graph.literals.items() if a.size > _SMALL}
    small = {v: a for v, a in graph.literals.items() if a.size <= _SMALL}

    def program(given: Sequence[Any], literals: Mapping[int, Any], numbers: Any) -> Any:
        values: dict[int, Any] = {
            value: jnp.asarray(array, graph.dtypes[value]) for value, array in small.items()
        }
        values.update(literals)
        values.update(graph.keys)
        values.update(zip(graph.inputs, given, strict=True))
        return function(values, numbers)

    given = [*leaves, *arrays]
    passed = {v: np.asarray(a, graph.dtypes[v]) for v, a in large.items()}
    return Program(jax.jit(program), given, passed)


def batch_findings(analysis: Analysis, arrays: Sequence[Any]) -> list[Finding]:
    """What is to be said of measuring on this batch, whatever comes out.

    Arguments:
        analysis: the analysis of the model.
        arrays: an array for each further input of the graph.
    """
    found = [
        Finding(Kind.LOOP_MEASURED, loop.where, loop.where, str(LOOP_CAP))
        for loop in analysis.model.graph.capped_loops
    ]
    sizes = [array.shape[0] for array in arrays if array.ndim]
    if sizes and max(sizes) == 1:
        found.append(Finding(Kind.ONE_EXAMPLE, "batch"))
    return found
