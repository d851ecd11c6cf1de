"""Whether a contraction averages: one of its operands holds the weights of an average."""

from __future__ import annotations

from anyinit._classify.traits import Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import contracted_axes
from anyinit._graph.graph import Node


def averages(traits: Traits, node: Node, position: int) -> bool:
    """Whether an operand holds the weights of a convex combination over a contracted axis."""
    axes = traits[node.inputs[position]].convex
    if axes is None:
        return False
    contracted = contracted_axes(node, position)
    return contracted is None or not axes or any(axis in contracted for axis in axes)


def averaging_operand(traits: Traits, node: Node) -> int | None:
    """Which operand of a contraction holds the weights of an average; ``None`` where none does."""
    if node.primitive not in primitives.CONTRACTIONS:
        return None
    places = range(min(len(node.inputs), 2))
    return next((place for place in places if averages(traits, node, place)), None)
