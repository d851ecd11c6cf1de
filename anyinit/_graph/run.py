"""Run the nodes of a flat graph on real arrays; nothing here knows what a weight is.

Everything is written so that JAX can trace it: a whole run compiles to one program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyinit._graph.graph import Graph, Node, hidden_inputs


def reads(node: Node) -> tuple[int, ...]:
    """Every value that a node needs when it is run: its inputs, and those that no rule looks at.

    Arguments:
        node: a node of a graph.
    """
    return (*node.inputs, *hidden_inputs(node))


def run_node(graph: Graph, node: Node, values: Mapping[int, Any]) -> list[Any]:
    """The results of one node.

    Arguments:
        graph: the graph that the node belongs to.
        node: the node.
        values: an array for every value that the node reads.

    Raises:
        NotImplementedError: the primitive cannot be run on arrays.
    """
    read = [values[value] for value in node.inputs]
    shape, dtype = graph.shapes[node.outputs[0]], graph.dtypes[node.outputs[0]]
    if node.primitive in ("segment_sum", "place"):
        # An indexed sum into zeros, of which the zeros are no input.
        return _bind(node.equation, [jnp.zeros(shape, dtype), *read[::-1]])
    if node.equation is not None:
        return _bind(node.equation, read)
    match node.primitive:
        case "stack_item":
            return [read[0][node.params["item"]]]
        case "stack" if "paddings" in node.params:
            zero = jnp.zeros((), read[0].dtype)
            paddings = node.params["paddings"]
            left, right = (jax.lax.pad(x, zero, p) for x, p in zip(read, paddings, strict=True))
            return [left + right]
        case "stack":
            return [jnp.stack(read)]
        case "settle":
            steps = node.params["steps"]
            settled_first = len(steps) > 1 and steps[0] == node.inputs[0]
            return [_steps([values[value] for value in steps], shape, settled_first)]
        case "mix":
            return [_chosen(values[node.params["chosen_by"]], read)]
        case "contract":
            product = jnp.broadcast_to(_product(read, dtype), node.params["shape"])
            return [jnp.sum(product, node.params["axes"], dtype=dtype)]
        case "average":
            left, right = (jax.lax.convert_element_type(x, dtype) for x in read[:2])
            return [left / right if node.params["divides"] else left * right]
        case "mul":
            return [_product(read, dtype).reshape(shape)]
        case "add":
            return [read[0] + read[1]]
        case "reshape":
            return [read[0].reshape(shape)]
        case "copy":
            return read
    raise NotImplementedError(f"There is no way to run {node.primitive} on arrays.")


def _bind(equation: Any, read: Sequence[Any]) -> list[Any]:
    primitive = equation.primitive
    with equation.ctx.manager:
        results = primitive.bind(*read, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def _product(read: Sequence[Any], dtype: Any) -> Any:
    left, right = (jax.lax.convert_element_type(x, dtype) for x in read)
    return left * right


def _steps(parts: Sequence[Any], shape: tuple[int, ...], settled_first: bool) -> Any:
    """What a loop collects; the settled step stands for all that were not written out."""
    stacked = jnp.stack(parts)
    missing = shape[0] - len(parts)
    if missing == 0:
        return stacked
    settled = stacked[:1] if settled_first else stacked[-1:]
    rest = jnp.broadcast_to(settled, (missing, *stacked.shape[1:]))
    return jnp.concatenate([rest, stacked] if settled_first else [stacked, rest])


def _chosen(predicate: Any, branches: Sequence[Any]) -> Any:
    index = jnp.clip(predicate.astype(jnp.int32), 0, len(branches) - 1)
    return jax.lax.switch(index, [lambda branch=branch: branch for branch in branches])
