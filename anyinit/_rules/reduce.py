"""Sums, means and extremes over an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anyinit._classify.traits import Traits
from anyinit._graph.contraction import terms_of_sum
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import mean_and_variance, permutation, quantile_draw, uniform_atom

# Beyond this many standard deviations a sum's mean hides its noise.
_CERTAIN = 12.0

# Other elements that stand for the rest of a sum.
_COPIES = 8


# The largest number of weights of a convex combination that are drawn together (np.choose's own
# limit is 32).
_DRAWN_TOGETHER = 32


def sum_of_terms(samples: np.ndarray, count: float, *key: int) -> np.ndarray:
    """Samples of the sum of ``count`` elements, as seen by one of its own terms.

    The sum is n·mean plus noise of variance n·var, which keeps the correlation 1/√n with each of
    its terms, since it contains them: a layer norm then comes out at 1 even for small n.
    """
    mean, variance = mean_and_variance(samples)
    if samples.ndim == 0 or variance == 0.0:
        return np.asarray(count * mean)
    if count <= 1:
        return samples
    deviation = math.sqrt(variance)
    if math.sqrt(count) * abs(mean) > _CERTAIN * deviation:
        return np.asarray(count * mean)
    own = (samples - mean) / deviation
    correlation = 1.0 / math.sqrt(count)
    # Sums over the same elements (of x and of x²) must fluctuate together, or a variance
    # computed as their difference could vanish: both see the same other elements.
    others = sum(own[permutation(*key, copy)] for copy in range(_COPIES)) / math.sqrt(_COPIES)
    fresh = math.sqrt(1.0 - correlation**2) * others
    total = count * mean + math.sqrt(count) * deviation * (correlation * own + fresh)
    # A sum of terms that are never negative is at least as large as any one of them.
    return np.maximum(total, samples) if samples.min() >= 0.0 else total


def extreme_of_terms(samples: np.ndarray, count: float, largest: bool, *key: int) -> np.ndarray:
    """Samples of the largest (smallest) of ``count`` independent elements."""
    if count <= 1:
        return samples
    levels = uniform_atom(*key) ** (1.0 / count)
    return quantile_draw(samples, levels if largest else 1.0 - levels)


def chosen_of_terms(
    samples: np.ndarray, count: int, kept: int, largest: bool, convex: bool, *key: int
) -> np.ndarray:
    """Samples of those elements that are the ``kept`` largest (smallest) of ``count``.

    Arguments:
        samples: samples of one element.
        count: number of elements that are compared.
        kept: number of elements that are kept.
        largest: whether the largest are kept.
        convex: whether all elements together sum to one.
        *key: seeds what is drawn.
    """
    if count <= 1 or samples.ndim == 0:
        return samples
    chosen = uniform_atom(*key)
    if convex and count <= _DRAWN_TOGETHER:
        shares = np.stack([samples[permutation(copy, count)] for copy in range(count)])
        shares = np.sort(shares / shares.sum(axis=0), axis=0)
        shares = shares[-kept:] if largest else shares[:kept]
        return np.choose((chosen * kept).astype(np.int64), list(shares))
    levels = chosen ** (1.0 / count) if kept == 1 else 1.0 - kept / count * chosen
    return quantile_draw(samples, levels if largest else 1.0 - levels)


def _sum(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    count = terms_of_sum(graph, node)
    return [
        sum_of_terms(samples.astype(np.float64), count, traits[value].base)
        for samples, value in zip(numbers, node.inputs, strict=True)
    ]


def _extreme(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    largest = "max" in node.primitive
    count = terms_of_sum(graph, node)
    if traits[node.inputs[0]].convex is not None:
        return [chosen_of_terms(numbers[0], round(count), 1, largest, True, *node.outputs)]
    return [extreme_of_terms(numbers[0], count, largest, *node.outputs)]


def _logical(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    largest = node.primitive == "reduce_or"
    return [extreme_of_terms(numbers[0], terms_of_sum(graph, node), largest, *node.outputs)]


def _index(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    return [np.asarray(1).astype(graph.dtypes[value]) for value in node.outputs]


def _top_k(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The top share of the quantiles, and opaque indices."""
    indices = _index(graph, traits, node, numbers)[1:]
    count, kept = (graph.shapes[value][-1] for value in (node.inputs[0], node.outputs[0]))
    convex = traits[node.inputs[0]].convex is not None
    top = chosen_of_terms(numbers[0], count, kept, True, convex, *node.outputs)
    return [top, *indices]


RULES = {
    "reduce_sum": _sum,
    "reduce_window_sum": _sum,
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "reduce_window_max": _extreme,
    "reduce_window_min": _extreme,
    "reduce_and": _logical,
    "reduce_or": _logical,
    "argmax": _index,
    "argmin": _index,
    "top_k": _top_k,
}
