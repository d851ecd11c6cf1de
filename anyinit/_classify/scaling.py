"""How a value scales with the one it was computed from.

A value that is a homogeneous function of an earlier one (its *base*) carries the degree: the mean
of x has degree 1, its variance 2, 1/√variance −1. Where a product brings the degree back to zero
through a reduced operand, the base has been normalized, however the norm is spelt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anyinit._classify.traits import Role, Trait, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Node

_TOLERANCE = 1e-9


def scaling(traits: Traits, node: Node, trait: Trait) -> Trait:
    """Fill in base, degree and reduced, or the normalization that has taken place."""
    name = node.primitive
    operands = node.inputs[1:] if name in ("select_n", "clamp") else node.inputs
    if name == "clamp":
        operands = (node.inputs[1],)
    moving = [traits[value] for value in operands if traits[value].moves]
    drawn = [operand for operand in moving if operand.role in (Role.WEIGHT, Role.DERIVED)]
    if trait.role is Role.SIGNAL and drawn:
        if name != "mul":
            return trait
        # A drawn gain scales a signal as a known one would.
        moving = [operand for operand in moving if operand.role is Role.SIGNAL]
    if not moving or any(operand.base != moving[0].base for operand in moving):
        return trait
    levels = [operand.reduced for operand in moving]
    level = min(levels)
    degrees = [operand.degree for operand in moving]
    degree: float | None = degrees[0] if max(degrees) - min(degrees) < _TOLERANCE else None
    if name in ("mul", "div"):
        degree = _product_degree(traits, node, moving)
        if max(levels) > level and abs(degree) < _TOLERANCE:
            over = any(operand.over_positions for operand in moving)
            return dataclasses.replace(
                trait, normalizes=moving[0].base, at_most=False, over_positions=over
            )
    elif name in primitives.CONTRACTIONS and len(moving) == 2:
        degree, level = (sum(degrees), level + 1) if _pairs_elements(traits, node) else (None, 0)
    elif name in primitives.REDUCTIONS:
        level += 1
    elif name in primitives.HOMOGENEOUS_DEGREE:
        degree = degrees[0] * primitives.HOMOGENEOUS_DEGREE[name]
    elif name == "integer_pow":
        degree = degrees[0] * node.params["y"]
    elif name == "pow":
        exponent = traits.constant(node.inputs[1])
        degree = None if exponent is None else degrees[0] * exponent
    elif name in primitives.ADDITIONS:
        degree = degree if level or _others_zero(traits, node) else None
    elif name in ("max", "min", "clamp"):
        degree = degree if level else None
    elif name == "select_n":
        degree = degree if level or not traits[node.inputs[0]].moves else None
    elif name not in primitives.LAYOUT | primitives.PICK | {"pad"}:
        degree = None
    if degree is None:
        return trait
    over = any(operand.over_positions for operand in moving)
    if name in primitives.REDUCTIONS and "axes" in node.params:
        over = not any(moving[0].features[axis] for axis in node.params["axes"])
    return dataclasses.replace(
        trait, base=moving[0].base, degree=degree, reduced=level, over_positions=over
    )


def _product_degree(traits: Traits, node: Node, moving: Sequence[Trait]) -> float:
    """The degree of a product or quotient of powers of one base."""
    left, right = (traits[value] for value in node.inputs)
    sign = 1.0 if node.primitive == "mul" else -1.0
    return sum(
        factor * operand.degree
        for factor, operand in ((1.0, left), (sign, right))
        if any(operand is one for one in moving)
    )


def _others_zero(traits: Traits, node: Node) -> bool:
    return all(traits[value].moves or traits.constant(value) == 0 for value in node.inputs)


def _pairs_elements(traits: Traits, node: Node) -> bool:
    """Whether a contraction pairs a value with itself, as in a norm written by einsum."""
    if node.primitive == "contract":
        return True
    if node.primitive != "dot_general":
        return False
    (contract_left, contract_right), (batch_left, batch_right) = node.params["dimension_numbers"]
    return (
        traits[node.inputs[0]].origin == traits[node.inputs[1]].origin
        and tuple(contract_left) == tuple(contract_right)
        and tuple(batch_left) == tuple(batch_right)
    )
