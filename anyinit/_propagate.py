"""Follow the signal's samples through the graph, scaling weights on the way.

The scale of a weight that is used once is set where it is used: its input is known by then. One
pass therefore settles a network of any depth; only weights used in several places need more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType

import numpy as np

from anyinit._graph import Graph, step_before
from anyinit._in_step import Memory, in_step, remembered_uses
from anyinit._positions import Pool, are_followed
from anyinit._rules import evaluate
from anyinit._signal import moment, normal_atom
from anyinit._traits import Role, Source, Traits
from anyinit._twins import Twins
from anyinit._uses import Meeting, Use

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
    numbers: dict[int, np.ndarray] = dict(traits.known)
    numbers.update(signals)
    remaining = {value: len(nodes) for value, nodes in enumerate(graph.consumers)}
    record = Record({}, {}, {}, set())
    memory: Memory = {}
    twins = Twins(graph, traits, pools, are_followed(graph, traits, pools, repeated))
    twins.begin(signals)
    for before in map(step_before, graph.nodes if twins.active else ()):
        if before is not None:
            remaining[before] += 1  # kept, to compare steps with
    remembered = remembered_uses(uses, repeated, everywhere=twins.active)
    broken: list[str] = []
    for value in graph.inputs:
        if traits.of[value] is not None and traits[value].role is Role.WEIGHT:
            numbers[value] = _leaf((value, None), sigma, drawn)
    for value in (wanted | kept) & numbers.keys():
        record.moments[value] = moment(numbers[value])
        record.samples[value] = numbers[value]
    for node in graph.nodes:
        if traits[node.outputs[0]].moves:
            use = uses.get(node.index)
            trait = traits[node.outputs[0]]
            item = node.primitive == "stack_item" and trait.role is Role.WEIGHT
            if item and trait.sources[0][1] is not None:
                results: Sequence[np.ndarray] = [_leaf(trait.sources[0], sigma, drawn)]
            else:
                factor = 1.0
                if use is not None:
                    weight = moment(numbers[use.weight])
                    entering = 1.0 if use.signal is None else moment(numbers[use.signal])
                    if not math.isfinite(entering):
                        raise NonFiniteError(_describe(broken, node.where))
                    record.asked[use.value] = (entering, weight)
                    factor = ask(use, entering, weight)
                    if use.meeting is Meeting.ADDED:
                        numbers[use.weight] = factor * numbers[use.weight]
                        factor = 1.0
                inputs = [numbers[value] for value in node.inputs]
                across = twins.across(node, numbers)
                results, assumed = (
                    evaluate(graph, traits, node, inputs) if across is None else (across, False)
                )
                if assumed:
                    record.assumed.add(node.index)
                if factor != 1.0:
                    results = [factor * result for result in results]
                identity, transposed = remembered.get(node.index, (None, None))
                if identity is not None and use is not None and use.signal is not None:
                    product = numbers[use.signal], results[0]
                    results = [in_step(memory, identity, *product, transposed)]
                if transposed is not None and use is not None and entering > 0:
                    # What is handed back counts as if the weight were larger.
                    size = moment(results[0]) / (use.fan * entering)
                    record.asked[use.value] = (entering, size)
                twins.follow(node, use, factor, numbers, results, memory, identity, transposed)
            if not broken and any(
                r.dtype.kind == "f" and not np.isfinite(r).all() for r in results
            ):
                broken.append(f"{node.primitive} at {node.where or 'an unknown line'}")
            numbers.update(zip(node.outputs, results, strict=True))
            for value in node.outputs:
                if value in wanted:
                    record.moments[value] = moment(numbers[value])
                if value in kept:
                    record.samples[value] = numbers[value]
        for value in set(node.inputs):
            remaining[value] -= 1
            if remaining[value] == 0 and value not in graph.outputs:
                numbers.pop(value, None)
                twins.other.pop(value, None)
    for value in graph.outputs:
        if traits[value].role is Role.SIGNAL and numbers[value].dtype.kind == "f":
            record.moments[value] = moment(numbers[value])
            if not math.isfinite(record.moments[value]):
                raise NonFiniteError(_describe(broken, ""))
    return record


def _describe(broken: list[str], where: str) -> str:
    culprit = broken[0] if broken else "an input"
    return (
        f"The signal became NaN or infinite during the analysis: first in the output of {culprit}"
        + (f", and it reaches the weight used at {where}" if where else "")
        + ". Expected finite numbers for inputs of second moment 1; check the functions and "
        "constants on that line (a division by zero, a logarithm or root of negative numbers)."
    )


def _leaf(
    source: Source, sigma: Mapping[Source, float], drawn: Mapping[Source, np.ndarray]
) -> np.ndarray:
    if source in drawn:
        return drawn[source]
    leaf, item = source
    return sigma.get(source, 1.0) * normal_atom(leaf, 0 if item is None else item + 1)
