"""Follow the signal's samples through the graph, scaling weights on the way.

The scale of a weight that is used once is set where it is used: its input is known by then. One
pass therefore settles a network of any depth; only weights used in several places need more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from types import MappingProxyType

import numpy as np

from anyinit._classify.traits import Role, Source, Traits
from anyinit._graph.graph import Graph, Node, collected_steps, step_before
from anyinit._propagate.elsewhere import Done
from anyinit._propagate.in_step import Memory, Transposed, in_step, remembered_uses
from anyinit._propagate.neighbours import Neighbours
from anyinit._propagate.positions import Pool, are_followed, is_read_for_few_steps
from anyinit._propagate.signal import moment, normal_atom
from anyinit._propagate.twins import Twins
from anyinit._rules import evaluate
from anyinit._sites.uses import Meeting, Use

Ask = Callable[[Use, float, float], float]


class NonFiniteError(FloatingPointError):
    """A signal became NaN or infinite while the analysis followed it."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What one pass has seen.

    Arguments:
        moments: second moment of the values asked for.
        samples: samples of the values asked for.
        asked: for each use (by its value), second moments of its input and of its weight.
        assumed: nodes whose output is a mere assumption.
    """

    moments: dict[int, float]
    samples: dict[int, np.ndarray]
    asked: dict[int, tuple[float, float]]
    assumed: set[int]


def propagate(
    graph: Graph,
    traits: Traits,
    signals: Mapping[int, np.ndarray],
    sigma: Mapping[Source, float],
    drawn: Mapping[Source, np.ndarray],
    uses: Mapping[int, Use],
    ask: Ask,
    wanted: Set[int],
    kept: Set[int] = frozenset(),
    repeated: Mapping[int, int] = MappingProxyType({}),
    pools: Mapping[int, Pool] = MappingProxyType({}),
) -> Record:
    """One pass over the graph.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        signals: samples of the float inputs.
        sigma: standard deviation of each planned source.
        drawn: samples of the sources that are left as they are drawn.
        uses: the uses by the index of their node.
        ask: called at each use with the second moments of its input and of its weight; returns
            the factor by which the result is to be multiplied.
        wanted: values whose second moments are recorded.
        kept: values whose samples are recorded.
        repeated: identities of the weights that are used several times, by the index of the use.
        pools: sums and extremes over positions, by the index of their node.

    Raises:
        NonFiniteError: if the signal that reaches a weight or an output is not finite.
    """
    twins = Twins(graph, traits, pools, are_followed(graph, traits, pools, repeated))
    twins.begin(signals)
    walk = _Pass(
        graph=graph,
        traits=traits,
        sigma=sigma,
        drawn=drawn,
        ask=ask,
        twins=twins,
        neighbours=Neighbours(graph, traits, twins.active, twins.other),
        remembered=remembered_uses(uses, repeated, everywhere=twins.active),
        numbers={**traits.known, **signals},
    )
    for value in graph.inputs:
        if traits.of[value] is not None and traits[value].role is Role.WEIGHT:
            walk.numbers[value] = walk.leaf((value, None))
    wanted = wanted | kept | {v for node in graph.nodes for v in collected_steps(node)}
    walk.note(wanted & walk.numbers.keys(), wanted, kept)
    remaining = _readers(graph, steps=twins.active)
    for node in graph.nodes:
        if traits[node.outputs[0]].moves:
            walk.step(node, uses.get(node.index))
            walk.note(node.outputs, wanted, kept)
        for value in set(node.inputs):
            remaining[value] -= 1
            if remaining[value] == 0 and value not in graph.outputs:
                walk.forget(value)
    for value in graph.outputs:
        if traits[value].role is Role.SIGNAL and walk.numbers[value].dtype.kind == "f":
            walk.note([value], {value}, ())
            if not math.isfinite(walk.record.moments[value]):
                raise NonFiniteError(_describe(walk.broken, ""))
    return walk.record


def _readers(graph: Graph, *, steps: bool) -> dict[int, int]:
    """How often each value is still to be read; `steps` are compared with the one before."""
    remaining = {value: len(nodes) for value, nodes in enumerate(graph.consumers)}
    for before in map(step_before, graph.nodes if steps else ()):
        if before is not None:
            remaining[before] += 1
    return remaining


@dataclasses.dataclass(frozen=True)
class _Pass:
    """A pass under way: what is fixed, and what has come of it so far.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        sigma: standard deviation of each planned source.
        drawn: samples of the sources that are left as they are drawn.
        ask: the factor of a use's result.
        twins: the same values at another position.
        neighbours: the same values at the next step.
        remembered: what identifies the weights whose products are remembered.
        numbers: samples of the values that are still to be read.
        memory: products of weights so far.
        record: what has been seen.
        broken: the first operation whose result was not finite.
    """

    graph: Graph
    traits: Traits
    sigma: Mapping[Source, float]
    drawn: Mapping[Source, np.ndarray]
    ask: Ask
    twins: Twins
    neighbours: Neighbours
    remembered: Mapping[int, tuple[int, Transposed | None]]
    numbers: dict[int, np.ndarray]
    memory: Memory = dataclasses.field(default_factory=dict)
    record: Record = dataclasses.field(default_factory=lambda: Record({}, {}, {}, set()))
    broken: list[str] = dataclasses.field(default_factory=list)

    def leaf(self, source: Source) -> np.ndarray:
        """A weight, as it is drawn or as it is planned."""
        if source in self.drawn:
            return self.drawn[source]
        leaf, item = source
        return self.sigma.get(source, 1.0) * normal_atom(leaf, 0 if item is None else item + 1)

    def note(self, values: Iterable[int], wanted: Container[int], kept: Container[int]) -> None:
        """Record moments and samples of those values that are asked for."""
        for value in values:
            if value in wanted:
                self.record.moments[value] = moment(self.numbers[value])
            if value in kept:
                self.record.samples[value] = self.numbers[value]

    def forget(self, value: int) -> None:
        """Free a value that nothing reads any more."""
        self.numbers.pop(value, None)
        self.twins.other.pop(value, None)
        self.neighbours.next_step.pop(value, None)
        self.neighbours.taken.pop(value, None)

    def step(self, node: Node, use: Use | None) -> None:
        """Find the results of a node, here and at another position."""
        trait = self.traits[node.outputs[0]]
        item = node.primitive == "stack_item" and trait.role is Role.WEIGHT
        if item and trait.sources[0][1] is not None:
            results: Sequence[np.ndarray] = [self.leaf(trait.sources[0])]
        else:
            results = self._computed(node, use)
        if not self.broken and any(_is_broken(result) for result in results):
            self.broken.append(f"{node.primitive} at {node.where or 'an unknown line'}")
        self.numbers.update(zip(node.outputs, results, strict=True))

    def _computed(self, node: Node, use: Use | None) -> Sequence[np.ndarray]:
        factor, entering = (self._over_steps(node), 1.0) if use is None else self._met(node, use)
        inputs = [self.numbers[value] for value in node.inputs]
        item = self.neighbours.item(node, self.numbers)
        results: Sequence[np.ndarray] | None = self.twins.across(node, self.numbers, item)
        if results is None:
            results, assumed = evaluate(self.graph, self.traits, node, inputs)
            if assumed:
                self.record.assumed.add(node.index)
        if factor != 1.0:
            results = [factor * result for result in results]
        identity, transposed = self.remembered.get(node.index, (None, None))
        if identity is not None and use is not None and use.signal is not None:
            product = self.numbers[use.signal], results[0]
            results = [in_step(self.memory, identity, *product, transposed)]
        if transposed is not None and use is not None and entering > 0:
            # What is handed back counts as if the weight were larger.
            size = moment(results[0]) / (use.fan * entering)
            self.record.asked[use.value] = (entering, size)
        done = Done(node, use, factor, self.numbers, results, self.memory, identity, transposed)
        self.twins.follow(done)
        self.neighbours.follow(done)
        return results

    def _over_steps(self, node: Node) -> float:
        """Of what a loop collects: by what all its steps are larger than the last; else 1.

        Steps that are not written out, or that no later step depends on, are like the last.
        Where the last state alone is read further on, it is the one that counts.
        """
        steps = collected_steps(node)
        if not steps or is_read_for_few_steps(self.graph, self.traits, node.outputs[0]):
            return 1.0
        last = moment(self.numbers[node.inputs[0]])
        each = [self.record.moments[v] for v in steps if v in self.record.moments]
        count = self.graph.shapes[node.outputs[0]][0]
        total = sum(each) + (count - len(each)) * last
        return math.sqrt(total / (count * last)) if 0 < last < math.inf else 1.0

    def _met(self, node: Node, use: Use) -> tuple[float, float]:
        """Ask for the factor of a use's result; also returns the second moment of its signal."""
        weight = moment(self.numbers[use.weight])
        entering = 1.0 if use.signal is None else moment(self.numbers[use.signal])
        if not math.isfinite(entering):
            raise NonFiniteError(_describe(self.broken, node.where))
        self.record.asked[use.value] = (entering, weight)
        factor = self.ask(use, entering, weight)
        if use.meeting is Meeting.ADDED:
            self.numbers[use.weight] = factor * self.numbers[use.weight]
            return 1.0, entering
        return factor, entering


def _is_broken(result: np.ndarray) -> bool:
    return result.dtype.kind == "f" and not np.isfinite(result).all()


def _describe(broken: list[str], where: str) -> str:
    culprit = broken[0] if broken else "an input"
    return (
        f"The signal became NaN or infinite during the analysis: first in the output of {culprit}"
        + (f", and it reaches the weight used at {where}" if where else "")
        + ". Expected finite numbers for inputs of second moment 1; check the functions and "
        "constants on that line (a division by zero, a logarithm or root of negative numbers)."
    )
