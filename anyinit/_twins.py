"""The same feature at another position: what a mean or a maximum over positions leaves.

Two positions share all weights. Their signals are therefore alike as soon as features have a mean:
after a ReLU, the product with the next weights has a part that is common to all positions, and a
global average keeps that part whole. Beside the samples x of an element, x′ are samples of the same
feature at another position; their correlation is what pooling over positions goes by. It is
followed only where a model pools over positions, or multiplies the signals of a shared weight.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit import _primitives as primitives
from anyinit._contraction import fan_in
from anyinit._graph import Graph, Node
from anyinit._repeated import Memory, in_step
from anyinit._rules import evaluate
from anyinit._rules.linear import averages
from anyinit._rules.reduce import sum_of_terms
from anyinit._signal import mean_and_variance, normal, normal_atom, quantile_draw, reshuffle, spread
from anyinit._traits import Role, Traits
from anyinit._uses import Meeting, Use, leaf_rank

# Sets the other position's randomness apart.
_OTHER = 977


@dataclasses.dataclass(frozen=True)
class Pool:
    """A sum or an extreme over positions.

    Arguments:
        positions: number of positions taken together.
        features: number of features taken together.
        everywhere: whether all positions are taken together, so that every position sees the
            same result.
    """

    positions: float
    features: float
    everywhere: bool


def find_pools(graph: Graph, traits: Traits) -> Mapping[int, Pool]:
    """Every sum or extreme over positions, by the index of its node; statistics of norms left out.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
    """
    pools = {}
    for node in graph.nodes:
        if node.primitive not in primitives.SUMS | primitives.EXTREMES:
            continue
        value = node.inputs[0]
        trait = traits[value]
        if trait.role is not Role.SIGNAL or trait.exp_of is not None or trait.degree != 1.0:
            continue
        if any(len(graph.consumers[v]) > 1 for v in (value, trait.base)):
            continue
        if trait.base in traits.normalized:
            continue
        pool = _pool(graph.shapes[value], trait.features, node)
        if pool.positions > 1 and graph.size(node.outputs[0]) > 1:
            pools[node.index] = pool
    return pools


def _pool(shape: Sequence[int], features: Sequence[bool], node: Node) -> Pool:
    window = node.params.get("window_dimensions")
    axes = node.params.get("axes", ())
    sizes = window or [size if axis in axes else 1 for axis, size in enumerate(shape)]
    taken = {True: 1.0, False: 1.0}
    for size, is_feature in zip(sizes, features, strict=True):
        taken[is_feature] *= size
    rest = any(
        size > 1 and taken_size == 1 and not is_feature
        for size, taken_size, is_feature in zip(shape, sizes, features, strict=True)
    )
    return Pool(taken[False], taken[True], window is None and not rest)


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
            self.other.update({v: reshuffle(s, v, _OTHER) for v, s in signals.items()})

    def across(self, node: Node, numbers: Mapping[int, np.ndarray]) -> list[np.ndarray] | None:
        """The result of a node that takes several positions together; ``None`` for any other."""
        if node.index in self.pools:
            return self._pooled(node, numbers)
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

    def _pooled(self, node: Node, numbers: Mapping[int, np.ndarray]) -> list[np.ndarray] | None:
        pool = self.pools[node.index]
        value, result = node.inputs[0], node.outputs[0]
        if value not in self.other:
            return None
        here, there = spread(numbers[value]), spread(self.other[value])
        if node.primitive in primitives.SUMS:
            pair = _sums(here, there, pool, value)
        else:
            pair = _extremes(here, there, pool, "max" in node.primitive, value)
        if not pool.everywhere:
            self.other[result] = pair[1]
        return [pair[0]]

    def follow(
        self,
        node: Node,
        use: Use | None,
        factor: float,
        numbers: Mapping[int, np.ndarray],
        results: Sequence[np.ndarray],
        memory: Memory,
        identity: int | None,
    ) -> None:
        """Find a node's results at another position.

        Arguments:
            node: the node.
            use: the use of a weight that it is, if any.
            factor: what the results have been multiplied by.
            numbers: samples of its operands.
            results: samples of its results.
            memory: products of weights so far.
            identity: which weight the node multiplies with, if it does.
        """
        if not self.active or node.index in self.pools:
            return
        if self._is_drawn_anew(node, use):
            for value, result in zip(node.outputs, results, strict=True):
                self.other[value] = reshuffle(result, value, _OTHER)
            return
        operands = [self.other.get(v, numbers[v]) for v in node.inputs]
        if use is not None and use.meeting is Meeting.ADDED and self._is_table(use):
            place = node.inputs.index(use.weight)
            operands[place] = reshuffle(operands[place], use.weight, _OTHER)
        elif not any(v in self.other for v in node.inputs):
            return
        found, _ = evaluate(self.graph, self.traits, node, operands)
        for value, result in zip(node.outputs, found, strict=True):
            there = result if factor == 1.0 else factor * result
            trait = self.traits[value]
            if use is not None and use.meeting is Meeting.CONTRACTION and use.signal is not None:
                entering = self.other.get(use.signal, numbers[use.signal])
                fresh = reshuffle(there, value, _OTHER)
                there = in_step(memory, identity or 0, entering, fresh)
            elif trait.normalizes is not None and trait.over_positions:
                # A norm over positions takes off what they have in common.
                there = reshuffle(there, value, _OTHER)
            self.other[value] = there

    def _is_table(self, use: Use) -> bool:
        return leaf_rank(self.graph, self.traits, use.weight) > 1

    def _is_drawn_anew(self, node: Node, use: Use | None) -> bool:
        """Whether a node's result has nothing in common between positions."""
        if node.primitive in primitives.RANDOM:
            return True
        if use is not None:
            return use.meeting is Meeting.LOOKUP
        return pairs_signals(self.graph, self.traits, node)


def pairs_signals(graph: Graph, traits: Traits, node: Node) -> bool:
    """Whether a node contracts two signals and averages neither."""
    return (
        node.primitive == "dot_general"
        and all(traits[value].role is Role.SIGNAL for value in node.inputs)
        and not any(averages(graph, traits, node, position) for position in (0, 1))
    )


def _common(here: np.ndarray, there: np.ndarray) -> tuple[float, float, float]:
    """Mean, variance, and covariance between two positions."""
    mean, variance = mean_and_variance(here)
    other = there - mean_and_variance(there)[0]
    covariance = float(np.mean((here - mean) * other))
    return mean, variance, min(max(covariance, 0.0), variance)


def _sums(
    here: np.ndarray, there: np.ndarray, pool: Pool, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sum over positions, here and in another group of positions.

    n·(mean + what all positions have in common) + what is left of the differences. The common
    part is the best linear guess from two positions, and a fresh rest.
    """
    mean, variance, covariance = _common(here, there)
    count = pool.positions
    rest = covariance - 2 * covariance**2 / (variance + covariance) if variance > 0 else 0.0
    share = covariance / (variance + covariance) if variance > 0 else 0.0
    common = share * (here + there - 2 * mean) + math.sqrt(max(rest, 0.0)) * normal_atom(key, 1)
    noise = math.sqrt(max(variance - covariance, 0.0) * (1 / count - 1 / count**2))
    sums = []
    for place, samples in enumerate((here, there)):
        own = (samples - mean - common) / count
        sums.append(count * (mean + common + own + noise * normal_atom(key, 2 + place)))
    if pool.features > 1:
        return tuple(sum_of_terms(s, pool.features, key) for s in sums)  # type: ignore[return-value]
    return sums[0], sums[1]


def _extremes(
    here: np.ndarray, there: np.ndarray, pool: Pool, largest: bool, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest (smallest) over positions, whose ranks have a common normal part."""
    _, variance, covariance = _common(here, there)
    alike = covariance / variance if variance > 0 else 0.0
    common = math.sqrt(alike) * normal_atom(key, 1)
    found = []
    for place in (0, 1):
        top = _largest_normal(pool.positions * pool.features, key, 2 + place)
        levels = _normal_levels(common + math.sqrt(1 - alike) * top)
        found.append(quantile_draw(here, levels if largest else 1.0 - levels))
    return found[0], found[1]


def _largest_normal(count: float, *key: int) -> np.ndarray:
    """Samples of the largest of several independent standard normals."""
    levels = _normal_levels(normal_atom(*key)) ** (1.0 / count)
    return _normal_scores(levels)


def _normal_levels(samples: np.ndarray) -> np.ndarray:
    """The standard normal's distribution function."""
    from scipy.special import ndtr  # slow to import, and few models need it

    return np.asarray(ndtr(samples))


def _normal_scores(levels: np.ndarray) -> np.ndarray:
    """The standard normal's quantiles."""
    from scipy.special import ndtri

    return np.asarray(ndtri(np.clip(levels, 1e-12, 1 - 1e-12)))
