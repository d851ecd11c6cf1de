"""Every place where a drawn weight meets the signal, and how."""

from __future__ import annotations

import dataclasses
import enum

from anyinit._classify.averaging import averages
from anyinit._classify.traits import Role, Source, Traits
from anyinit._findings import Reason
from anyinit._graph import primitives
from anyinit._graph.contraction import fan_in
from anyinit._graph.graph import Graph, Node


class Meeting(enum.Enum):
    """How a weight meets the signal."""

    CONTRACTION = "kernel"
    LOOKUP = "lookup"
    ADDED = "added"


@dataclasses.dataclass(frozen=True)
class Use:
    """One product, lookup or addition of a drawn weight.

    Arguments:
        node: index of the node.
        meeting: how the weight meets the signal.
        weight: the operand that holds the weight.
        signal: the other operand, or ``None`` for a lookup or a sum.
        value: the result, from which the walk to the site begins.
        sources: the leaves behind the weight operand.
        power: the power of their common scale that the weight operand has.
        fan: number of elements summed over.
        transposes: index of an earlier product of the same weight along its other axes.
    """

    node: int
    meeting: Meeting
    weight: int
    signal: int | None
    value: int
    sources: tuple[Source, ...]
    fan: float
    power: int = 1
    transposes: int | None = None


@dataclasses.dataclass(frozen=True)
class Uses:
    """All uses of drawn weights in a graph.

    Arguments:
        scaled: the uses from which a scale can be read.
        by_value: the same, by the value that they produce.
        fixed: reasons to leave a source alone, where one of its uses gives one.
    """

    scaled: tuple[Use, ...]
    by_value: dict[int, Use]
    fixed: dict[Source, Reason]


def find_uses(graph: Graph, traits: Traits) -> Uses:
    """Find how every drawn weight is used."""
    scaled: list[Use] = []
    fixed: dict[Source, Reason] = {}
    for node in graph.nodes:
        weights = [value for value in node.inputs if traits[value].role is Role.WEIGHT]
        derived = [value for value in node.inputs if traits[value].role is Role.DERIVED]
        if not weights and not derived:
            continue
        result = traits[node.outputs[0]]
        if result.role is Role.WEIGHT:
            continue
        if result.role is Role.DERIVED or not weights:
            for source, reason in _derived_reasons(graph, traits, node):
                fixed.setdefault(source, reason)
            continue
        use = _use(graph, traits, node, weights[0])
        if isinstance(use, Use):
            scaled.append(dataclasses.replace(use, power=traits[use.weight].power))
        else:
            for source in traits[weights[0]].sources:
                fixed.setdefault(source, use)
    return Uses(tuple(scaled), {use.value: use for use in scaled}, fixed)


def _derived_reasons(graph: Graph, traits: Traits, node: Node) -> list[tuple[Source, Reason]]:
    """Why weights that enter this node other than linearly keep their values."""
    result = traits[node.outputs[0]]
    entering = [traits[v] for v in node.inputs if traits[v].role in (Role.WEIGHT, Role.DERIVED)]
    if result.role is Role.DERIVED and all(trait.base == result.base for trait in entering):
        return []
    reasons = []
    for value in node.inputs:
        trait = traits[value]
        if trait.role not in (Role.WEIGHT, Role.DERIVED) or not trait.sources:
            continue
        if result.normalizes is not None and result.normalizes == trait.base:
            reason = Reason.SCALE_FREE
        elif trait.role is Role.WEIGHT and leaf_rank(graph, traits, value) <= 1:
            reason = Reason.GAIN
        elif trait.role is Role.WEIGHT:
            reason = Reason.NONLINEAR
        else:
            continue
        reasons += [(source, reason) for source in trait.sources]
    return reasons


def _use(graph: Graph, traits: Traits, node: Node, weight: int) -> Use | Reason:
    others = [value for value in node.inputs if value != weight]
    sources = traits[weight].sources
    value = node.outputs[0]
    name = node.primitive
    if name in primitives.CONTRACTIONS and others:
        signal = others[0]
        position = node.inputs.index(signal)
        if traits[signal].one_hot or averages(traits, node, position):
            return Use(node.index, Meeting.LOOKUP, weight, None, value, sources, 1.0)
        fan = fan_in(graph, node)
        return Use(node.index, Meeting.CONTRACTION, weight, signal, value, sources, fan)
    if name == "gather":
        if node.inputs[0] != weight:
            return Reason.UNPLANNED
        return Use(node.index, Meeting.LOOKUP, weight, None, value, sources, 1.0)
    if name == "mul" and others:
        return Reason.GAIN
    if name in primitives.ADDITIONS:
        return Use(node.index, Meeting.ADDED, weight, None, weight, sources, 1.0)
    if name in primitives.JOIN or name == "select_n":
        return Reason.SIGNAL
    if name in primitives.CONTRACTIONS:
        return Reason.UNPLANNED
    return Reason.GAIN if leaf_rank(graph, traits, weight) <= 1 else Reason.NONLINEAR


def leaf_rank(graph: Graph, traits: Traits, weight: int) -> int:
    """Number of axes longer than one of the leaves behind a weight, the layer axis left out."""
    return max(
        sum(size > 1 for size in graph.shapes[leaf]) - (item is not None)
        for leaf, item in traits[weight].sources
    )
