"""What each value is a multiple of: the constant factor since the last value made otherwise.

Half of h, minus h, h / 16 + h / 16 and h after dropout are all multiples of h. One forward pass
says of every value which one it is a multiple of, and by how much.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set

import numpy as np

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import swaps_places, terms_of_sum
from anyinit._graph.graph import Graph, Node


@dataclasses.dataclass(frozen=True, slots=True)
class Multiple:
    """A value as a multiple of an earlier one.

    Arguments:
        origin: the earlier value.
        factor: by how much, with its sign; under dropout, the mean factor.
        view: which slices were taken: only equal views of one value add in step.
    """

    origin: int
    factor: float = 1.0
    view: int = 0


def multiples(graph: Graph, traits: Traits, products: Set[int]) -> Sequence[Multiple]:
    """Every value of a graph as a multiple of an earlier one.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        products: values that begin a line of their own: products of weights and signals.
    """
    found = [Multiple(value) for value in range(len(graph.shapes))]
    for node in graph.nodes:
        for position, value in enumerate(node.outputs):
            if value not in products:
                found[value] = _multiple(graph, traits, found, node, position)
    return found


def _multiple(
    graph: Graph, traits: Traits, found: Sequence[Multiple], node: Node, position: int
) -> Multiple:
    value = node.outputs[position]
    role = traits[value].role
    if role not in (Role.WEIGHT, Role.SIGNAL):
        return Multiple(value)
    moving = [v for v in node.inputs if traits[v].role is role and not traits[v].is_zero]
    if node.primitive in primitives.ADDITIONS and len(moving) == 2:
        left, right = (found[v] for v in node.inputs)
        if (left.origin, left.view) != (right.origin, right.view):
            return Multiple(value)
        sign = -1.0 if node.primitive == "sub" else 1.0
        return dataclasses.replace(left, factor=left.factor + sign * right.factor)
    if not moving:
        return Multiple(value)
    before = found[moving[0]]
    if node.primitive in primitives.PICK:
        return dataclasses.replace(before, view=hash((before.view, node.index, position)))
    if swaps_places(graph, node):
        # Transposed twice, it is the same view again.
        return dataclasses.replace(before, view=before.view ^ hash(node.params["permutation"]))
    if role is Role.WEIGHT and node.primitive in primitives.JOIN:
        return before
    if len(moving) > 1 or not passes(traits, node, moving[0]):
        return Multiple(value)
    if _is_mean(graph, traits, node, moving[0]):
        return Multiple(value)
    factor = before.factor * own_factor(traits, node, moving[0])
    return dataclasses.replace(before, factor=factor)


def _is_mean(graph: Graph, traits: Traits, node: Node, value: int) -> bool:
    """Whether a node divides a sum by the number of its terms."""
    producer = graph.producers[graph.before_layout(value)]
    if producer < 0 or graph.nodes[producer].primitive not in primitives.SUMS:
        return False
    count = terms_of_sum(graph, graph.nodes[producer])
    return math.isclose(own_factor(traits, node, value) * count, 1.0, rel_tol=1e-3)


def passes(traits: Traits, node: Node, value: int) -> bool:
    """Whether a node hands a value on through a constant factor, a mask, a bias or layout."""
    name = node.primitive
    others = [v for v in node.inputs if v != value]
    if name in primitives.LAYOUT | {"neg", "pad"}:
        return node.inputs[0] == value
    still = all(not traits[v].moves for v in others)
    if name == "div":
        return still and node.inputs[0] == value
    if name == "select_n":
        return still and value in node.inputs[1:]
    if name in primitives.ADDITIONS:
        return all(traits[v].role is not Role.SIGNAL or traits[v].is_zero for v in others)
    return name == "mul" and still and node.inputs.count(value) == 1


def own_factor(traits: Traits, node: Node, value: int) -> float:
    """The constant factor that a node applies to a value that it passes on."""
    if node.primitive == "neg" or (node.primitive == "sub" and node.inputs[1] == value):
        return -1.0
    if node.primitive == "select_n":
        return kept_share(traits, node, value)
    if node.primitive not in ("mul", "div"):
        return 1.0
    factor = 1.0
    for other in node.inputs:
        if other != value:
            factor *= constant_factor(traits, other)
    return 1.0 / factor if node.primitive == "div" and factor else factor


def constant_factor(traits: Traits, value: int) -> float:
    """The number that a value multiplies by: gains and unknown numbers count as one."""
    trait = traits[value]
    if trait.role is Role.NOISE:
        return float(np.mean(traits.known[value]))
    constant = traits.constant(value)
    return 1.0 if constant is None or trait.gain else constant


def kept_share(traits: Traits, node: Node, value: int) -> float:
    """The share of entries that a selection by random numbers keeps; 1 under a plain mask."""
    predicate = node.inputs[0]
    if traits[predicate].role is not Role.NOISE:
        return 1.0
    chosen = traits.known[predicate].astype(np.int64)
    return float(np.mean(chosen == node.inputs[1:].index(value)))
