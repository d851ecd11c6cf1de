"""A node's results at another place of a signal: other operands, the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._classify.traits import Traits
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.in_step import Memory, Transposed, in_step
from anyinit._propagate.signal import independent_copy
from anyinit._rules import evaluate
from anyinit._sites.uses import Meeting, Use


@dataclasses.dataclass(frozen=True)
class Done:
    """A node whose results have been found, with all that went into them.

    Arguments:
        node: the node.
        use: the use of a weight that it is, if any.
        factor: what the results have been multiplied by.
        numbers: samples of its operands.
        results: samples of its results.
        memory: products of weights so far.
        identity: which weight the node multiplies with, if it does.
        transposed: the same weight along its other axes, if it was met before.
    """

    node: Node
    use: Use | None
    factor: float
    numbers: Mapping[int, np.ndarray]
    results: Sequence[np.ndarray]
    memory: Memory
    identity: int | None
    transposed: Transposed | None

    @property
    def signal(self) -> int | None:
        """The signal that a weight is contracted with, if that is what the node does."""
        contracted = self.use is not None and self.use.meeting is Meeting.CONTRACTION
        return self.use.signal if contracted and self.use is not None else None


def results_elsewhere(
    graph: Graph,
    traits: Traits,
    done: Done,
    operands: Sequence[np.ndarray],
    signals: Mapping[int, np.ndarray],
    key: int,
) -> list[np.ndarray]:
    """What a node makes of other operands; products of a weight in step with its earlier ones.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        done: the node, and what it has made here.
        operands: its operands there.
        signals: samples there of the signals that differ from here.
        key: sets the randomness there apart.
    """
    found, _ = evaluate(graph, traits, done.node, operands)
    results = []
    for value, result in zip(done.node.outputs, found, strict=True):
        there = result if done.factor == 1.0 else done.factor * result
        if done.signal is not None:
            entering = signals.get(done.signal, done.numbers[done.signal])
            fresh = independent_copy(there, value, key)
            there = in_step(done.memory, done.identity or 0, entering, fresh, done.transposed)
        results.append(there)
    return results
