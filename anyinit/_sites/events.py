"""What acts on a walked value: everything that is not linear and constant is an event."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence, Set

from anyinit._classify.averaging import averages
from anyinit._classify.traits import Role, Trait
from anyinit._graph import primitives
from anyinit._graph.graph import Node
from anyinit._sites.sums import Residual, Sums, is_sum


class Acts(enum.Enum):
    """What acts at a site, from the most to the least telling where several do."""

    RESIDUAL = "residual stream"
    OUTPUT = "output"
    NONLINEARITY = "nonlinearity"
    STREAM = "start of a stream"
    WEIGHT = "another weight"
    PRODUCT = "product of two signals"
    POOLING = "pooling"
    NORMALIZATION = "normalization"


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a walk has to know of a graph.

    Arguments:
        sums: its sums of terms.
        residuals: its additions to residual streams, by the value of the sum.
        outputs: the model's outputs that are logits or signals.
    """

    sums: Sums
    residuals: Mapping[int, Residual]
    outputs: Set[int]


def event_at(
    structure: Structure, node: Node, reached: Sequence[int], inside: Sequence[int]
) -> tuple[Acts, int | None] | None:
    """What a node does to the walked value, or ``None`` where the walk goes on.

    Arguments:
        structure: the sums and streams of the graph.
        node: the node.
        reached: operands that are the walked value, up to constant factors.
        inside: operands that are a statistic of it.

    Returns:
        what acts, and the sum of the residual stream, where it is one.
    """
    sums = structure.sums
    traits, name = sums.traits, node.primitive
    walked = (reached or inside)[0]
    result = traits[node.outputs[0]]
    layout = name in primitives.LAYOUT
    if result.normalizes == traits[walked].base and not layout:
        return Acts.NORMALIZATION, None
    others = [value for value in node.inputs if value not in reached and value not in inside]
    moving = [value for value in others if traits[value].moves]
    same_base = result.base == traits[walked].base
    if name in primitives.ADDITIONS:
        return _added(structure, node, reached, inside, same_base)
    if name in primitives.CONTRACTIONS:
        if not reached and _is_pooled(traits[walked]):
            return Acts.POOLING, None
        return _contracted(sums, node, walked, moving, same_base)
    if name == "average":
        averaged = set(reached) <= set(node.inputs[3:]) and not inside
        return None if averaged else (Acts.NONLINEARITY, None)
    if not reached:
        # A statistic goes on as long as it scales with the walked value.
        if same_base and not moving:
            return None
        if name in primitives.LAYOUT:
            return None
        return (Acts.POOLING if _is_pooled(traits[walked]) else Acts.NONLINEARITY), None
    if name in primitives.LAYOUT | primitives.PICK | {"neg"}:
        return (Acts.NONLINEARITY, None) if walked != node.inputs[0] else None
    if name in primitives.JOIN:
        return None
    if name == "select_n":
        predicate = traits[node.inputs[0]]
        computed = predicate.role is Role.SIGNAL or node.inputs[0] in (*reached, *inside)
        return (Acts.NONLINEARITY, None) if computed else None
    if name in ("mul", "div"):
        if same_base and (len(moving) == 0):
            return None
        signals = [value for value in moving if traits[value].role is Role.SIGNAL]
        if inside or (len(reached) > 1) or (name == "div" and walked != node.inputs[0]):
            return Acts.NONLINEARITY, None
        if not signals:
            return None if node.inputs.count(walked) == 1 else (Acts.NONLINEARITY, None)
        if any(_written_out(sums, reached, value) for value in signals):
            return Acts.NONLINEARITY, None
        return Acts.PRODUCT, None
    if name == "reduce_sum" and _pools(structure, node):
        return Acts.POOLING, None
    if name == "reduce_sum" or (name in primitives.REDUCTIONS and same_base):
        return (Acts.POOLING, None) if name == "reduce_window_sum" else None
    if name in ("reduce_window_sum", "cumsum", "psum"):
        return Acts.POOLING, None
    if same_base and name not in primitives.EXTREMES:
        return None
    return Acts.NONLINEARITY, None


def stays_linear(sums: Sums, node: Node, reached: Sequence[int], value: int) -> bool:
    """Whether a node's result is still the walked value, not a statistic of it."""
    trait, before = sums.traits[value], sums.traits[reached[0]]
    if node.primitive in primitives.ADDITIONS | primitives.PICK | primitives.JOIN:
        return True
    if trait.base != before.base:
        return True
    return trait.reduced == before.reduced and math.isclose(trait.degree, before.degree)


def _pools(structure: Structure, node: Node) -> bool:
    """Whether a sum takes the whole signal, not a statistic of it; a scalar is a loss."""
    sums = structure.sums
    value = node.inputs[0]
    base = sums.traits[value].base
    alone = all(len(sums.live_consumers(v)) == 1 for v in (value, base))
    alone = alone and base not in sums.traits.normalized
    return alone and sums.graph.size(node.outputs[0]) > 1


def _is_pooled(trait: Trait) -> bool:
    """Whether a statistic scales as what it was computed from: a sum, a mean or an extreme."""
    return trait.reduced > 0 and trait.degree == 1.0


def _added(
    structure: Structure,
    node: Node,
    reached: Sequence[int],
    inside: Sequence[int],
    same_base: bool,
) -> tuple[Acts, int | None] | None:
    sums = structure.sums
    traits = sums.traits
    if inside:
        statistic = all(traits[value].reduced for value in inside)
        if reached and all(_is_pooled(traits[value]) for value in inside):
            return None
        if same_base or (reached and statistic and traits[inside[0]].log_sum_of is not None):
            return None
        return Acts.NONLINEARITY, None
    if not is_sum(traits, node) or len(reached) > 1:
        return None
    root = sums.root(node.outputs[0])
    residual = structure.residuals.get(root)
    if residual is not None:
        if any(term.chain & set(reached) for term in residual.branches):
            return Acts.RESIDUAL, root
        if residual.stream_chain & set(reached):
            return Acts.STREAM, root
    others = [value for value in node.inputs if value not in reached]
    log_softmax = traits[node.outputs[0]].log_sum_of is not None
    if any(_written_out(sums, reached, value) for value in others) and not log_softmax:
        return Acts.NONLINEARITY, None
    return None


def _written_out(sums: Sums, reached: Sequence[int], other: int) -> bool:
    """Whether an operand was computed from the walked value without a weight in between."""
    return any(sums.ancestry.is_near(value, other) for value in reached)


def _contracted(
    sums: Sums, node: Node, walked: int, moving: Sequence[int], same_base: bool
) -> tuple[Acts, int | None] | None:
    traits = sums.traits
    if not moving:
        return None if same_base else (Acts.WEIGHT, None)
    other = moving[0]
    if traits[other].role in (Role.WEIGHT, Role.DERIVED):
        return Acts.WEIGHT, None
    if traits[other].one_hot and not averages(traits, node, node.inputs.index(other)):
        return None
    return Acts.PRODUCT, None
