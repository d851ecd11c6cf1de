"""What a walk has passed: constant factors, and the factor on the second moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import swaps_places
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import moment
from anyinit._sites.lineage import constant_factor, kept_share


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """What a walk has passed on the way to a value.

    Arguments:
        factor: product of the constant factors, with its sign.
        gain: factor on the second moment, of everything passed.
        view: which slices were taken: only equal views of one product add in step.
    """

    factor: float = 1.0
    gain: float = 1.0
    view: int = 0

    def scaled(self, factor: float) -> Path:
        """The path after one more constant factor."""
        return dataclasses.replace(
            self, factor=self.factor * factor, gain=self.gain * factor * factor
        )


def passed(
    graph: Graph,
    traits: Traits,
    paths: Mapping[int, Path],
    node: Node,
    reached: Sequence[int],
    value: int,
) -> Path:
    """The path after a linear node.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        paths: the paths to the node's operands.
        node: the node.
        reached: its operands that the walk has reached.
        value: the result.
    """
    path = paths[reached[0]]
    name = node.primitive
    if name in primitives.PICK:
        view = hash((path.view, node.index, node.outputs.index(value)))
        return dataclasses.replace(path, view=view)
    if swaps_places(graph, node):
        return dataclasses.replace(path, view=path.view ^ hash(node.params["permutation"]))
    if name == "neg":
        return path.scaled(-1.0)
    if name in primitives.ADDITIONS:
        return _merged(paths, node, reached)
    if name == "select_n":
        # Under a dropout mask the kept share belongs to the moment, too.
        share = kept_share(traits, node, reached[0])
        return dataclasses.replace(path, factor=path.factor * share, gain=path.gain * share)
    if name not in ("mul", "div"):
        return path
    for other in node.inputs:
        if other not in reached:
            path = _multiplied(traits, node, other, path)
    return path


def _merged(paths: Mapping[int, Path], node: Node, reached: Sequence[int]) -> Path:
    first = paths[reached[0]]
    if len(reached) == 1:
        if node.inputs.count(reached[0]) == 2:
            return first.scaled(2.0 if node.primitive != "sub" else 0.0)
        negative = node.primitive == "sub" and node.inputs[1] == reached[0]
        return first.scaled(-1.0) if negative else first
    left, right = (paths[value] for value in node.inputs)
    sign = -1.0 if node.primitive == "sub" else 1.0
    if left.view != right.view:
        return dataclasses.replace(left, gain=left.gain + right.gain)
    factor = left.factor + sign * right.factor
    scale = left.gain / left.factor**2 if left.factor else 1.0
    return dataclasses.replace(left, factor=factor, gain=scale * factor**2)


def _multiplied(traits: Traits, node: Node, other: int, path: Path) -> Path:
    trait = traits[other]
    if trait.moves or trait.role is Role.OPAQUE:
        return path
    numbers = traits.known[other]
    if node.primitive == "div":
        with np.errstate(all="ignore"):
            numbers = 1.0 / numbers.astype(np.float64)
    factor = constant_factor(traits, other)
    factor = 1.0 / factor if node.primitive == "div" and factor else factor
    return dataclasses.replace(path, factor=path.factor * factor, gain=path.gain * moment(numbers))
