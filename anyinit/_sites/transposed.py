"""Where a weight is met again, transposed: as the decoder of a tied autoencoder is."""

from __future__ import annotations

import dataclasses

from anyinit._classify.traits import Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import contracted_axes
from anyinit._graph.graph import Graph, Node
from anyinit._sites.uses import Meeting, Use, Uses


def with_transposes(graph: Graph, traits: Traits, uses: Uses) -> Uses:
    """Note at each product of a weight the latest one that summed over the weight's other axes.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        uses: all uses of weights, in the order of the graph.
    """
    latest: dict[tuple[object, frozenset[int]], int] = {}
    found: list[Use] = []
    for use in uses.scaled:
        axes = _summed_and_kept(graph, traits, use)
        if axes is not None:
            base, summed, kept = axes
            use = dataclasses.replace(use, transposes=latest.get((base, kept)))
            latest[base, summed] = use.node
        found.append(use)
    return Uses(tuple(found), {use.value: use for use in found}, uses.fixed)


def _summed_and_kept(
    graph: Graph, traits: Traits, use: Use
) -> tuple[object, frozenset[int], frozenset[int]] | None:
    """A weight before it is transposed, and its axes: summed over, and kept."""
    if use.meeting is not Meeting.CONTRACTION:
        return None
    node, value = graph.nodes[use.node], use.weight
    place = node.inputs.index(value)
    summed = contracted_axes(node, place)
    if summed is None:
        return None
    order = tuple(range(len(graph.shapes[value])))
    batch = node.params["dimension_numbers"][1][place] if node.primitive == "dot_general" else ()
    while (index := graph.producers[value]) >= 0:
        made = graph.nodes[index]
        if made.primitive == "transpose":
            # Axis i of the transposed array is axis permutation[i] of the array.
            order = tuple(made.params["permutation"][axis] for axis in order)
        elif made.primitive not in primitives.IDENTITY and not _enlarges(traits, made):
            break
        value = next(operand for operand in made.inputs if traits[operand].moves)
    long = frozenset(axis for axis, size in enumerate(graph.shapes[value]) if size > 1)
    taken = frozenset(order[axis] for axis in summed) & long
    kept = long - taken - {order[axis] for axis in batch}
    # An item of a stack is taken out anew for each use.
    whole = index >= 0 and graph.nodes[index].primitive == "stack_item"
    base = traits[value].sources if whole else value
    return (base, taken, kept) if taken and kept else None


def _enlarges(traits: Traits, node: Node) -> bool:
    """Whether a node multiplies a weight by a positive number."""
    moving = [operand for operand in node.inputs if traits[operand].moves]
    numbers = [traits.constant(operand) for operand in node.inputs if operand not in moving]
    if len(moving) != 1 or (
        node.primitive != "mul" and (node.primitive, moving[0]) != ("div", node.inputs[0])
    ):
        return False
    return numbers[0] is not None and numbers[0] > 0
