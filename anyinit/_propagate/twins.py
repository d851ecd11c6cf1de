"""The same feature at another position: what a mean or a maximum over positions leaves.

Two positions share all weights. Their signals are therefore alike as soon as features have a mean:
after a ReLU, the product with the next weights has a part that is common to all positions, and a
global average keeps that part whole. Beside the samples x of an element, x′ are samples of the same
feature at another position; their correlation is what pooling over positions goes by. It is
followed only where a model pools over positions, or multiplies the signals of a shared weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._classify.averaging import averaging_operand
from anyinit._classify.features import mixes_positions
from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import fan_in
from anyinit._graph.graph import Graph, Node, step_before
from anyinit._propagate.elsewhere import Done, results_elsewhere
from anyinit._propagate.pooling import (
    correlation,
    covariance,
    covariance_beyond_chance,
    extremes_over,
    sums_over,
    with_covariance,
)
from anyinit._propagate.positions import Pool, pairs_signals, takes_positions
from anyinit._propagate.signal import (
    NOISE,
    independent_copy,
    mean_and_variance,
    normal,
    reshuffle,
    spread,
    uniform_atom,
)
from anyinit._rules.layout import pick_key
from anyinit._sites.uses import Meeting, Use, leaf_rank

# Sets the other position's randomness apart.
_OTHER = 977


@dataclasses.dataclass(frozen=True)
class Twins:
    """Samples of every value at another position.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        pools: the sums and extremes over positions.
        active: whether anything is to be followed.
        other: samples at another position; a value that is missing has the same there.
    """

    graph: Graph
    traits: Traits
    pools: Mapping[int, Pool]
    active: bool
    other: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def begin(self, signals: Mapping[int, np.ndarray]) -> None:
        """Inputs are independent from position to position."""
        if self.active:
            self.other.update({v: independent_copy(s, v, _OTHER) for v, s in signals.items()})

    def across(
        self, node: Node, numbers: Mapping[int, np.ndarray], item: np.ndarray | None
    ) -> list[np.ndarray] | None:
        """The result of a node that takes several positions together; ``None`` for any other.

        Arguments:
            node: the node.
            numbers: samples of all values.
            item: what a sequence whose neighbours are alike has at the position that is taken.
        """
        if node.index in self.pools:
            return self._pooled(node, numbers)
        if self.active and (item is not None or self._alike(node, numbers) > NOISE):
            return self._item(node, numbers, item)
        if self.active and pairs_signals(self.graph, self.traits, node):
            return [self._paired(node, numbers)]
        return None

    def _paired(self, node: Node, numbers: Mapping[int, np.ndarray]) -> np.ndarray:
        """A product of signals at two positions: features that share weights add up in step."""
        left, right = (spread(numbers[v]) for v in node.inputs)
        other = spread(self.other.get(node.inputs[1], right))
        count = fan_in(self.graph, node)
        mean, variance = mean_and_variance(left * other)
        return normal(count * mean, count * variance, *node.outputs)

    def _alike(self, node: Node, numbers: Mapping[int, np.ndarray]) -> float:
        """How alike the positions are that a node takes one (or some) of; 0 for any other node."""
        taken = takes_positions(self.graph, self.traits, node)
        value = node.inputs[0] if taken else -1
        if value not in self.other:
            return 0.0
        return correlation(spread(numbers[value]), spread(self.other[value]))

    def _item(
        self, node: Node, numbers: Mapping[int, np.ndarray], item: np.ndarray | None
    ) -> list[np.ndarray]:
        """Some positions of a signal: as alike to others as its positions are to each other.

        The same share of the samples stays in place for all positions, the rest is reshuffled by
        position: any two of them, and any one and the whole, have the correlation wanted.
        """
        here, key = numbers[node.inputs[0]], pick_key(node, 0)
        kept = uniform_atom(_OTHER) < self._alike(node, numbers)
        if item is None:
            item = np.where(kept, here, reshuffle(here, key))
        self.other[node.outputs[0]] = np.where(kept, item, reshuffle(here, key, _OTHER))
        return [item]

    def _pooled(self, node: Node, numbers: Mapping[int, np.ndarray]) -> list[np.ndarray] | None:
        pool = self.pools[node.index]
        value, result = node.inputs[0], node.outputs[0]
        if value not in self.other:
            return None
        here, there = spread(numbers[value]), spread(self.other[value])
        if node.primitive in primitives.SUMS:
            pair = sums_over(here, there, pool, value)
        else:
            pair = extremes_over(here, there, pool, "max" in node.primitive, value)
        if not pool.everywhere:
            self.other[result] = pair[1]
        return [pair[0]]

    def follow(self, done: Done) -> None:
        """Find a node's results at another position.

        Arguments:
            done: the node, and what it has made here.
        """
        node, use, numbers, results = done.node, done.use, done.numbers, done.results
        if not self.active or node.index in self.pools or node.outputs[0] in self.other:
            return
        if self._is_drawn_anew(node, use):
            for value, result in zip(node.outputs, results, strict=True):
                self.other[value] = independent_copy(result, value, _OTHER)
            return
        operands = [self._elsewhere(node, v, numbers) for v in node.inputs]
        if use is not None and use.meeting is Meeting.ADDED and self._is_table(use):
            place = node.inputs.index(use.weight)
            operands[place] = independent_copy(operands[place], use.weight, _OTHER)
        elif not any(v in self.other for v in node.inputs):
            return
        found = results_elsewhere(self.graph, self.traits, done, operands, self.other, _OTHER)
        for value, there in zip(node.outputs, found, strict=True):
            trait = self.traits[value]
            if done.signal is None and trait.normalizes is not None and trait.over_positions:
                # A norm over positions takes off what they have in common.
                there = independent_copy(there, value, _OTHER)
            share = self._in_common(node, numbers, results[0])
            if share > 0:
                here = results[0]
                kept = uniform_atom(value, _OTHER) < share
                wanted = share * mean_and_variance(here)[1]
                wanted += (1 - share) * covariance_beyond_chance(here, there)
                there = with_covariance(here, np.where(kept, here, there), wanted)
            elif done.use is None and self._adds_signals(node):
                terms = [spread(numbers[v]) for v in node.inputs]
                wanted = _covariance_of_sums(node, terms, [spread(term) for term in operands])
                there = with_covariance(results[0], there, wanted)
            self.other[value] = there

    def _in_common(
        self, node: Node, numbers: Mapping[int, np.ndarray], result: np.ndarray
    ) -> float:
        """The share that two positions have in common by what a node does.

        Averages with weights w over n elements share Σ w·w′ of what they average. Two steps of a
        loop are as alike as its successive steps make them: with correlation r from step to step,
        the mean of r^k over all pairs.
        """
        place = averaging_operand(self.traits, node)
        if place is not None:
            weights = spread(numbers[node.inputs[place]])
            elsewhere = spread(self.other.get(node.inputs[place], weights))
            return min(
                1.0, fan_in(self.graph, node) * float(np.mean((weights * np.conj(elsewhere)).real))
            )
        before = step_before(node)
        if before is None or before not in numbers:
            return 0.0
        count = self.graph.shapes[node.outputs[0]][0]
        alike = correlation(spread(result), spread(numbers[before]))
        if alike <= NOISE or count < 2:
            return 0.0
        apart = np.arange(1, count)
        return float(np.sum((count - apart) * alike**apart) / (count * (count - 1) / 2))

    def _adds_signals(self, node: Node) -> bool:
        """Whether a node adds two signals that both differ from position to position."""
        return (
            node.primitive in primitives.ADDITIONS
            and all(value in self.other for value in node.inputs)
            and all(self.traits[value].role is Role.SIGNAL for value in node.inputs)
            and self.traits[node.outputs[0]].shifted is None
        )

    def _elsewhere(self, node: Node, value: int, numbers: Mapping[int, np.ndarray]) -> np.ndarray:
        """An operand at another position, where a dropout mask has numbers of its own."""
        if value in self.other:
            return self.other[value]
        drawn = self.traits[value].role is Role.NOISE and numbers[value].ndim > 0
        whole = self.graph.size(self.graph.before_layout(value))
        if drawn and whole == self.graph.size(node.outputs[0]):
            return reshuffle(numbers[value], value, _OTHER)
        return numbers[value]

    def _is_table(self, use: Use) -> bool:
        return leaf_rank(self.graph, self.traits, use.weight) > 1

    def _is_drawn_anew(self, node: Node, use: Use | None) -> bool:
        """Whether a node's result has nothing in common between positions.

        Each position that a weight makes of all others has numbers of its own.
        """
        if node.primitive in primitives.RANDOM:
            return True
        if use is not None:
            mixed = mixes_positions(node, [self.traits[value] for value in node.inputs])
            return use.meeting is Meeting.LOOKUP or mixed
        return pairs_signals(self.graph, self.traits, node)


def _covariance_of_sums(
    node: Node, here: Sequence[np.ndarray], there: Sequence[np.ndarray]
) -> float:
    """The covariance of a + b (or a − b) between two positions.

    Of one term at both positions all counts; of different ones what is more than chance.
    """
    sign = -1.0 if node.primitive == "sub" else 1.0
    own = sum(covariance(*pair) for pair in zip(here, there, strict=True))
    across = covariance_beyond_chance(here[0], there[1])
    across += covariance_beyond_chance(here[1], there[0])
    return own + sign * across
