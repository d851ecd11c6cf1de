"""Which values a value was computed from, and whether through a weight.

Kept as bit sets over the values that fork (have several consumers): only those can be a residual
stream or the start of an activation written out in several primitives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph


@dataclasses.dataclass(frozen=True)
class Ancestry:
    """Bit sets of ancestors.

    Arguments:
        bits: the bit of each value that forks.
        near: for each value, ancestors reached without passing a weight's product.
        through: for each value, ancestors reached through at least one weight's product.
    """

    bits: Mapping[int, int]
    near: Sequence[int]
    through: Sequence[int]

    def is_near(self, ancestor: int, value: int) -> bool:
        """Whether ``ancestor`` reaches ``value`` without passing a weight."""
        return bool(self.near[value] & self.bits.get(ancestor, 0))

    def is_behind_weight(self, ancestor: int, value: int) -> bool:
        """Whether ``ancestor`` reaches ``value`` through a weight."""
        return bool(self.through[value] & self.bits.get(ancestor, 0))


def find_ancestry(graph: Graph, traits: Traits) -> Ancestry:
    """Compute the bit sets of a graph in one forward pass."""
    bits: dict[int, int] = {}
    near = [0] * len(graph.shapes)
    through = [0] * len(graph.shapes)
    for node in graph.nodes:
        close = far = 0
        weighted = False
        for value in node.inputs:
            trait = traits[value]
            if trait.role in (Role.WEIGHT, Role.DERIVED):
                weighted = True
            if not trait.moves:
                # A product with a constant weight (a zero-initialized last layer) counts too.
                weighted = weighted or (trait.gain and len(graph.shapes[value]) > 1)
                continue
            if len(graph.consumers[value]) > 1 and value not in bits:
                bits[value] = 1 << len(bits)
            close |= near[value] | bits.get(value, 0)
            far |= through[value]
        signals = [value for value in node.inputs if traits[value].role is Role.SIGNAL]
        contracted = node.primitive != "mul" and len(node.inputs) > 1
        if weighted and (signals or contracted) and _is_product(node.primitive):
            close, far = 0, far | close
        for value in node.outputs:
            near[value], through[value] = close, far
    return Ancestry(bits, near, through)


def _is_product(primitive: str) -> bool:
    return primitive == "mul" or primitive in primitives.CONTRACTIONS
