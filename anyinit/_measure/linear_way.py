"""What a product delivers further on, where every step on the way is linear in it.

A weight is measured at its site with all other terms of the sums left out. The way there is a part
of the graph: the nodes that lead from the product to the site. Each of them is run a second time on
the product alone, so nothing has to be known of what the other operands hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node
from anyinit._graph.run import run_node

_ONE_OPERAND = (
    primitives.SHAPE
    | (primitives.IDENTITY - {"settle"})
    | {"neg", "slice", "dynamic_slice", "rev", "split", "stack_item", "gather"}
    | {"reduce_sum", "cumsum"}
)


def linear_way(graph: Graph, traits: Traits, start: int, end: int) -> tuple[Node, ...] | None:
    """The nodes from one value to a later one, or ``None`` where one of them is not linear.

    Joins, and masks that fill with something, change which elements there are: what crosses them is
    not followed either, nor what meets another weight.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        start: the value to begin at.
        end: the value to arrive at.
    """
    nodes = _between(graph, start, end)
    if nodes is None:
        return None
    reached = {start}
    for node in nodes:
        if not _is_linear(traits, node, [v for v in node.inputs if v in reached]):
            return None
        reached.update(node.outputs)
    return tuple(nodes)


def collects_steps(graph: Graph, start: int, end: int) -> bool:
    """Whether a value is one step of what a loop collects on the way to another, with no mask.

    Arguments:
        graph: the flattened model.
        start: the value to begin at.
        end: the value to arrive at.
    """
    names = {node.primitive for node in _between(graph, start, end) or []}
    return "settle" in names and "select_n" not in names


def _between(graph: Graph, start: int, end: int) -> list[Node] | None:
    """The nodes on some path between two values, in order."""
    if start == end:
        return []
    last = graph.producers[end]
    forward = {start}
    pending, found = [start], set()
    while pending:
        for index in graph.consumers[pending.pop()]:
            if index <= last and index not in found:
                found.add(index)
                forward.update(graph.nodes[index].outputs)
                pending += graph.nodes[index].outputs
    if end not in forward:
        return None
    needed = {end}
    nodes = []
    for index in sorted(found, reverse=True):
        node = graph.nodes[index]
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            nodes.append(node)
    return nodes[::-1]


def _is_linear(traits: Traits, node: Node, reached: list[int]) -> bool:
    name = node.primitive
    if name in primitives.ADDITIONS:
        return True
    count = sum(node.inputs.count(value) for value in reached)
    first = node.inputs[0] in reached
    if count != 1:
        return False
    if name in _ONE_OPERAND or name == "div":
        return first
    if name == "select_n":
        return not first and traits[node.inputs[0]].role is Role.NOISE
    if name == "mul" or name in primitives.CONTRACTIONS:
        others = [traits[value].role for value in node.inputs if value not in reached]
        return all(role not in (Role.WEIGHT, Role.DERIVED) for role in others)
    return False


def delivered(
    graph: Graph,
    way: tuple[Node, ...],
    start: int,
    end: int,
    alone: Any,
    value_of: Callable[[int], Any],
) -> Any:
    """What arrives at the end of a linear way when nothing but its beginning enters.

    Arguments:
        graph: the flattened model.
        way: the nodes of the way, as ``linear_way`` gives them.
        start: the value at its beginning.
        end: the value at its end.
        alone: an array for the beginning.
        value_of: gives the array of any value that does not depend on the beginning.
    """
    carried: dict[int, Any] = {start: alone}
    for node in way:
        carried.update(zip(node.outputs, _step(graph, node, carried, value_of), strict=True))
    return carried[end]


def _step(
    graph: Graph, node: Node, carried: Mapping[int, Any], value_of: Callable[[int], Any]
) -> list[Any]:
    if node.primitive in primitives.ADDITIONS:
        terms = [carried.get(value) for value in node.inputs]
        if node.primitive == "sub" and terms[1] is not None:
            terms[1] = -terms[1]
        present = [term for term in terms if term is not None]
        total = present[0] + present[1] if len(present) == 2 else present[0]
        return [jnp.broadcast_to(total, graph.shapes[node.outputs[0]])]
    dropped = set(node.inputs[1:]) - carried.keys() if node.primitive == "select_n" else set()
    read = {
        value: jnp.zeros(graph.shapes[value], graph.dtypes[value])
        if value in dropped
        else (carried[value] if value in carried else value_of(value))
        for value in node.inputs
    }
    return run_node(graph, node, read)
