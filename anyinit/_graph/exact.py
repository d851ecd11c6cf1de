"""Exact values of small constants: a number that is picked out of a known array, or its mean."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anyinit._graph.equation import run_equation
from anyinit._graph.graph import Graph

# The largest array that is evaluated on the way to a number.
_LARGEST = 1 << 16


def exact_value(graph: Graph, arrays: Mapping[int, np.ndarray], value: int) -> np.ndarray | None:
    """The array that a value holds, where it depends on known arrays alone and is small.

    Arguments:
        graph: the flattened model.
        arrays: known arrays of the graph's arguments.
        value: the value to evaluate.

    Returns:
        The array, or ``None`` where an argument, a random number or a large array enters, or a
        step cannot be evaluated.
    """
    done: dict[int, np.ndarray] = {}
    pending = [value]
    while pending:
        current = pending[-1]
        if current in done:
            pending.pop()
            continue
        known = graph.literals.get(current, arrays.get(current))
        if known is not None:
            done[current] = np.broadcast_to(known, graph.shapes[current])
            continue
        producer = graph.producers[current]
        if producer < 0 or graph.size(current) > _LARGEST:
            return None
        node = graph.nodes[producer]
        if node.equation is None and node.primitive != "stack_item":
            return None
        missing = [v for v in node.inputs if v not in done]
        if missing:
            pending += missing
            continue
        if node.equation is None:
            done[current] = done[node.inputs[0]][node.params["item"]]
            continue
        operands = [done[v].astype(graph.dtypes[v]) for v in node.inputs]
        try:
            results = run_equation(node.equation, operands)
        except Exception:
            # A primitive that cannot be run on its own leaves the value to the samples.
            return None
        done.update(zip(node.outputs, results, strict=True))
    return done[value]
