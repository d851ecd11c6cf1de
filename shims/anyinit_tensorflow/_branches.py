"""Operations that call graphs: branches and plain calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def called_graph(operation: Any, function: Any) -> Any:
    """The graph that an operation calls.

    Arguments:
        operation: the operation.
        function: the attribute of it that names the graph.
    """
    graph = operation.graph
    while graph is not None:
        found = graph._get_function(function.name)
        if found is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(function.name)


def _call(run: Any, operation: Any, values: Sequence[Any]) -> Sequence[Any]:
    graph = called_graph(operation, operation.get_attr("f"))
    found: Sequence[Any] = run.evaluate(graph.inputs, values, graph.outputs)
    return found


def _if(run: Any, operation: Any, values: Sequence[Any]) -> Sequence[Any]:
    branches = [operation.get_attr(name) for name in ("else_branch", "then_branch")]
    chosen = values[0] if isinstance(values[0], np.ndarray) else jnp.asarray(values[0])
    return _switch(run, operation, branches, chosen != 0, values[1:])


def _case(run: Any, operation: Any, values: Sequence[Any]) -> Sequence[Any]:
    return _switch(run, operation, operation.get_attr("branches"), values[0], values[1:])


def _switch(
    run: Any, operation: Any, branches: Sequence[Any], chosen: Any, values: Sequence[Any]
) -> Sequence[Any]:
    graphs = [called_graph(operation, branch) for branch in branches]
    if not isinstance(chosen, jax.core.Tracer):
        graph = graphs[int(np.clip(int(chosen), 0, len(graphs) - 1))]
        found: Sequence[Any] = run.evaluate(graph.inputs, values, graph.outputs)
        return found

    def branch(graph: Any) -> Callable[[], list[Any]]:
        return lambda: [
            jnp.asarray(value) for value in run.evaluate(graph.inputs, values, graph.outputs)
        ]

    made: Sequence[Any] = jax.lax.switch(
        jnp.asarray(chosen).astype(np.int32), [branch(graph) for graph in graphs]
    )
    return made


# Called with a Run, the operation and its inputs.
BRANCHES: dict[str, Callable[[Any, Any, Sequence[Any]], Sequence[Any]]] = {
    "Case": _case,
    "If": _if,
    "PartitionedCall": _call,
    "StatefulPartitionedCall": _call,
    "StatelessCase": _case,
    "StatelessIf": _if,
}
