"""The same feature at the next step of a sequence that a loop has made.

What a recurrent network returns changes slowly: the next step is much more alike than any other.
A second recurrent network adds up what successive steps have in common, so that taken as
independent, or as no more alike than any two steps, they leave its state too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import LEAST_STEPS, Graph, Node, step_before
from anyinit._propagate.elsewhere import Done, results_elsewhere
from anyinit._propagate.pooling import correlation
from anyinit._propagate.positions import takes_positions
from anyinit._propagate.signal import NOISE, mixture, reshuffle, spread, uniform_atom
from anyinit._rules.layout import pick_key

# Set the next step's randomness apart from that of any other position.
_NEXT, _COMMON = 983, 991


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Samples of every value at the next step, behind what a loop has collected.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        active: whether anything is to be followed.
        other: samples at another position.
        next_step: samples at the next step; of a value that is missing, any other position.
        taken: the item of each sequence that was taken last.
    """

    graph: Graph
    traits: Traits
    active: bool
    other: Mapping[int, np.ndarray]
    next_step: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    taken: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def item(self, node: Node, numbers: Mapping[int, np.ndarray]) -> np.ndarray | None:
        """An item of a sequence, as alike to the one taken before as neighbours are.

        A share of the samples stays in place for all items, as much as any two of them have in
        common beyond a chain of neighbours. Of the others, a share is as in the item before.

        Arguments:
            node: the node that takes it.
            numbers: samples of all values.

        Returns:
            its samples, or ``None`` where neighbours are no more alike than others.
        """
        if not self.next_step or not takes_positions(self.graph, self.traits, node):
            return None
        value = node.inputs[0]
        if value not in self.next_step:
            return None
        here = spread(numbers[value])
        near = correlation(here, spread(self.next_step[value]))
        far = correlation(here, spread(self.other.get(value, here)))
        if near <= max(far, 0.0) + NOISE:
            return None
        common = _beyond_a_chain(near, far, self.graph.shapes[value][0])
        fresh = reshuffle(here, pick_key(node, 0), _NEXT)
        before = self.taken.get(value)
        if before is not None:
            kept = uniform_atom(*node.outputs, _NEXT) < (near - common) / (1 - common)
            fresh = np.where(kept, before, fresh)
        self.taken[value] = fresh
        return np.where(uniform_atom(_COMMON) < common, here, fresh)

    def follow(self, done: Done) -> None:
        """Find a node's results at the next step.

        Arguments:
            done: the node, and what it has made here.
        """
        node, numbers = done.node, done.numbers
        if not self.active or node.primitive in primitives.PICK | primitives.REDUCTIONS:
            return
        begun = self._begun(node, done.factor, numbers)
        if begun is not None:
            self.next_step[node.outputs[0]] = begun
            return
        if not any(value in self.next_step for value in node.inputs):
            return
        operands = [self.next_step.get(v, self.other.get(v, numbers[v])) for v in node.inputs]
        found = results_elsewhere(self.graph, self.traits, done, operands, self.next_step, _NEXT)
        self.next_step.update(zip(node.outputs, found, strict=True))

    def _begun(
        self, node: Node, factor: float, numbers: Mapping[int, np.ndarray]
    ) -> np.ndarray | None:
        """What a node collects of successive steps, a step further."""
        before = step_before(node)
        if before is not None and before in numbers:
            return factor * numbers[before]
        joins = node.primitive in ("concatenate", "stack") and len(node.inputs) >= LEAST_STEPS
        if joins and all(self.traits[value].role is Role.SIGNAL for value in node.inputs):
            shapes = {self.graph.shapes[value] for value in node.inputs}
            parts = [numbers[value] for value in (node.inputs[1], *node.inputs[:-1])]
            return mixture(parts, [1.0] * len(parts), *node.outputs) if len(shapes) == 1 else None
        return None


def _beyond_a_chain(near: float, far: float, count: int) -> float:
    """The share that all steps have in common: what a chain of neighbours does not explain."""
    apart = np.arange(1, count)
    chain = float(np.sum((count - apart) * near**apart) / (count * (count - 1) / 2))
    return max(0.0, (far - chain) / (1 - chain)) if chain < 1 else 0.0
