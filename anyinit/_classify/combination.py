"""Convex combinations: a value divided by its own sum over an axis, in any spelling.

Softmax written as a quotient, as exp(y − log Σ exp y), with a mask or dropout in between, or over
the selected few of a router: contracting the tagged axis keeps the scale of what is averaged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anyinit._classify.traits import Role, Trait, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node


def combination(traits: Traits, graph: Graph, node: Node, trait: Trait) -> Trait:
    """Fill in the tags that recognize a softmax, and carry them on."""
    name = node.primitive
    first = traits[node.inputs[0]]
    if name in primitives.LAYOUT:
        return dataclasses.replace(
            trait,
            origin=first.origin,
            normalizes=first.normalizes,
            shifted=first.shifted,
            sum_of=first.sum_of,
            sum_axes=first.sum_axes,
            exp_of=first.exp_of,
            log_sum_of=first.log_sum_of,
            convex=_moved(graph, node, first.convex),
            softmax_of=first.softmax_of,
        )
    if name in primitives.ADDITIONS:
        return _added(traits, node, trait)
    if name == "exp":
        if first.log_sum_of is not None:
            return dataclasses.replace(trait, convex=first.sum_axes, softmax_of=first.log_sum_of)
        return dataclasses.replace(trait, exp_of=first.unshifted)
    if name == "reduce_sum":
        axes = tuple(node.params["axes"])
        return dataclasses.replace(trait, sum_of=first.origin, sum_axes=axes, exp_of=first.exp_of)
    if name == "log" and first.sum_of is not None and first.exp_of is not None:
        return dataclasses.replace(trait, log_sum_of=first.exp_of, sum_axes=first.sum_axes)
    if name in ("max", "clamp") and any(traits[value].sum_of is not None for value in node.inputs):
        summed = next(traits[value] for value in node.inputs if traits[value].sum_of is not None)
        return dataclasses.replace(trait, sum_of=summed.sum_of, sum_axes=summed.sum_axes)
    if name in ("mul", "div"):
        return _scaled(traits, node, trait)
    if name == "select_n":
        cases = [traits[value] for value in node.inputs[1:]]
        kept = [case for case in cases if case.moves]
        others_zero = all(traits.constant(v) == 0 for v in node.inputs[1:] if not traits[v].moves)
        if len(kept) == 1 and others_zero:
            return dataclasses.replace(trait, convex=kept[0].convex, softmax_of=kept[0].softmax_of)
    if name in primitives.PICK | {"pad"}:
        return dataclasses.replace(trait, convex=first.convex, softmax_of=first.softmax_of)
    return trait


def absorbed_nodes(traits: Traits, graph: Graph, node: Node) -> set[int]:
    """Nodes that make one operation with another: what a walk does not have to enter.

    Those between a value and its own log-sum-exp, where that is subtracted from it, and those that
    sum what a later quotient turns into an average.
    """
    if node.primitive == "average":
        return {graph.producers[value] for value in node.params["inside"]} - {-1}
    if node.primitive != "sub" or traits[node.outputs[0]].log_sum_of is None:
        return set()
    left = traits[node.inputs[0]]
    found: set[int] = set()
    pending = [node.inputs[1]]
    while pending:
        value = pending.pop()
        producer = graph.producers[value]
        if (
            producer < 0
            or producer in found
            or traits[value].origin in (left.origin, left.unshifted)
        ):
            continue
        found.add(producer)
        pending.extend(graph.nodes[producer].inputs)
    return found


def _added(traits: Traits, node: Node, trait: Trait) -> Trait:
    """A statistic of a value added to it, or to its log-sum-exp; a small number to a sum."""
    left, right = (traits[value] for value in node.inputs)
    if node.primitive == "sub" and right.log_sum_of is not None:
        if right.log_sum_of == left.unshifted:
            return dataclasses.replace(
                trait, log_sum_of=left.unshifted, sum_axes=right.sum_axes, shifted=left.unshifted
            )
        return trait
    for one, other in ((left, right), (right, left)):
        if not other.moves and one.sum_of is not None:
            return dataclasses.replace(trait, sum_of=one.sum_of, sum_axes=one.sum_axes)
        if one.log_sum_of is not None and other.reduced > 0:
            return dataclasses.replace(trait, log_sum_of=one.log_sum_of, sum_axes=one.sum_axes)
    if left.moves and right.reduced > left.reduced and left.base == right.base:
        return dataclasses.replace(trait, shifted=left.unshifted)
    return trait


def _scaled(traits: Traits, node: Node, trait: Trait) -> Trait:
    left, right = (traits[value] for value in node.inputs)
    if node.primitive == "div" and right.sum_of is not None:
        if left.role is Role.KNOWN and traits.constant(node.inputs[0]) is not None:
            return dataclasses.replace(trait, sum_of=right.sum_of, sum_axes=right.sum_axes)
        if right.sum_of == left.origin and right.degree > 0:
            return dataclasses.replace(
                trait, convex=right.sum_axes, normalizes=None, softmax_of=left.exp_of
            )
    if node.primitive == "mul":
        for one, other in ((left, right), (right, left)):
            if other.sum_of is not None and other.sum_of == one.origin and other.degree < 0:
                return dataclasses.replace(
                    trait, convex=other.sum_axes, normalizes=None, softmax_of=one.exp_of
                )
    for one, other in ((left, right), (right, left)):
        if one.convex is not None and not other.moves:
            return dataclasses.replace(trait, convex=one.convex, softmax_of=one.softmax_of)
    return trait


def _moved(graph: Graph, node: Node, axes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The axes of a tag after a change of shape; empty where they cannot be followed."""
    if not axes or node.primitive in primitives.IDENTITY:
        return axes
    if node.primitive == "transpose":
        permutation = list(node.params["permutation"])
        return tuple(permutation.index(axis) for axis in axes)
    if node.primitive == "broadcast_in_dim":
        return tuple(node.params["broadcast_dimensions"][axis] for axis in axes)
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    moved = [_reshaped_axis(before, after, axis) for axis in axes]
    return () if None in moved else tuple(axis for axis in moved if axis is not None)


def _reshaped_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Where a reshape puts an axis: same size, same number of elements before it."""
    leading = int(np.prod(before[:axis], dtype=np.int64))
    for candidate, size in enumerate(after):
        same = int(np.prod(after[:candidate], dtype=np.int64)) == leading
        if same and size == before[axis]:
            return candidate
    return None
