"""Contractions and lookups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anyinit._classify.averaging import averages
from anyinit._classify.traits import Role, Traits
from anyinit._graph.contraction import fan_in, pairs_all
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import (
    complex_atom,
    mean_and_variance,
    mixture,
    moment,
    normal,
    normal_atom,
    reshuffle,
)
from anyinit._rules.reduce import chosen_of_terms, sum_of_terms


def _contract(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A fresh normal variable of the matching moment, unless an operand picks or averages."""
    left, right = numbers[0], numbers[1]
    traits_left, traits_right = traits[node.inputs[0]], traits[node.inputs[1]]
    for position, (own, other) in enumerate(((traits_left, right), (traits_right, left))):
        if own.one_hot:
            return [reshuffle(other, *node.outputs)]
        if averages(traits, node, position):
            if not traits.independent_tokens:
                return [reshuffle(other, *node.outputs)]
            return [_shrunk(numbers[position], other, fan_in(graph, node), node)]
    count = fan_in(graph, node)
    weighted = Role.WEIGHT in (traits_left.role, traits_right.role)
    if not weighted and traits_left.moves and traits_right.moves and pairs_all(graph, node):
        return [sum_of_terms(left * right, count, *node.outputs)]
    if weighted:
        scale = math.sqrt(count * moment(left) * moment(right))
        atom = complex_atom if "c" in (left.dtype.kind, right.dtype.kind) else normal_atom
        return [scale * atom(*node.outputs) if scale > 0 else np.asarray(0.0)]
    if "c" in (left.dtype.kind, right.dtype.kind):
        return [math.sqrt(count * moment(left) * moment(right)) * complex_atom(*node.outputs)]
    (mean_left, var_left), (mean_right, var_right) = map(mean_and_variance, (left, right))
    mean = count * mean_left * mean_right
    variance = count * (var_left * var_right + var_left * mean_right**2 + var_right * mean_left**2)
    return [normal(mean, variance, *node.outputs)]


def _shrunk(shares: np.ndarray, averaged: np.ndarray, count: float, node: Node) -> np.ndarray:
    """An average of independent elements: its variance shrinks by Σp²."""
    mean, variance = mean_and_variance(averaged)
    average = mean_and_variance(shares)[0]
    concentration = moment(shares) / (count * average**2) if average > 0 else 1.0
    return normal(mean, variance * min(concentration, 1.0), *node.outputs)


def _average(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A quotient of two sums keeps the scale of what it averages, as a softmax does."""
    weights, averaged = numbers[2], numbers[3:]
    share = mixture(list(averaged), [1.0] * len(averaged), *node.outputs)
    if not traits.independent_tokens:
        return [reshuffle(share, *node.outputs)]
    return [_shrunk(weights, share, node.params["count"], node)]


def _gather(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Rows of a drawn weight are fresh; entries of a signal are the same marginal."""
    if traits[node.inputs[0]].role is Role.WEIGHT and numbers[0].ndim > 0:
        return [math.sqrt(moment(numbers[0])) * normal_atom(*node.outputs)]
    operand, chosen = traits[node.inputs[0]], traits[node.inputs[1]].chosen
    if chosen is not None and chosen.among in (operand.origin, operand.softmax_of):
        # What was compared is taken where it is largest: the best expert's own weight.
        convex = operand.convex is not None
        how = (chosen.count, chosen.kept, chosen.largest, convex)
        return [chosen_of_terms(numbers[0], *how, *node.inputs[1:])]
    return [reshuffle(numbers[0], *node.inputs[1:])]


def _orthogonal(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Columns of unit length, by which weights are drawn; what comes with them keeps its scale."""
    rows = graph.shapes[node.outputs[0]][-2]
    columns = normal_atom(*node.outputs) / math.sqrt(rows)
    return [columns, *(reshuffle(numbers[0], value) for value in node.outputs[1:])]


RULES = {
    "qr": _orthogonal,
    "householder_product": _orthogonal,
    "dot_general": _contract,
    "contract": _contract,
    "conv_general_dilated": _contract,
    "ragged_dot": _contract,
    "ragged_dot_general": _contract,
    "average": _average,
    "gather": _gather,
}
