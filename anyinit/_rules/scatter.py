"""Numbers written, added or compared at indexed places, as in sums over the edges of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyinit._classify.traits import Traits
from anyinit._graph.contraction import terms_of_sum
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import mixture, reshuffle, spread
from anyinit._rules.reduce import extreme_of_terms, sum_of_terms


def _updates(node: Node) -> int:
    """The position of the numbers that are written."""
    return 1 if node.primitive == "dynamic_update_slice" else len(node.inputs) - 1


def _written(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A part overwritten: a mixture, unless what lies below is a fill that does not count.

    A constant below a slice (the rest of a cache) is still to be written, and so are zeros that
    are written to again. Zeros that stay between scattered numbers are computed with: the gates of
    the experts that were not chosen.
    """
    position = _updates(node)
    whole, part = node.inputs[0], node.inputs[position]
    below, above = traits[whole], traits[part]
    stays = node.primitive == "scatter" and numbers[0].ndim == 0 and not numbers[0].any()
    drops_out = not stays or _is_written_again(graph, node)
    if above.moves and not below.moves and numbers[0].ndim == 0 and drops_out:
        return [numbers[position]]
    if below.moves and not above.moves and numbers[position].ndim == 0:
        return [numbers[0]]
    inside = float(graph.size(part))
    shares = [max(float(graph.size(whole)) - inside, 0.0), inside]
    return [mixture([numbers[0], numbers[position]], shares, *node.outputs)]


def _is_written_again(graph: Graph, node: Node) -> bool:
    readers = [graph.nodes[index] for index in graph.consumers[node.outputs[0]]]
    return any(
        reader.primitive in ("scatter", "dynamic_update_slice")
        and reader.inputs[0] == node.outputs[0]
        for reader in readers
    )


def _added(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A part to which something is added."""
    whole, part = numbers[0], numbers[-1]
    count = terms_of_sum(graph, node)
    sign = -1.0 if node.primitive == "scatter-sub" else 1.0
    total = sum_of_terms(part.astype(np.float64), count, *node.inputs[-1:])
    both = whole + sign * total
    if count >= 1.0:
        return [both]
    return [mixture([whole, both], [1.0 - count, count], *node.outputs)]


def _segment_sum(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The sum of those that are sent to one place, as many as there are on average."""
    samples = numbers[0].astype(np.float64)
    return [sum_of_terms(samples, terms_of_sum(graph, node), traits[node.inputs[0]].base)]


def _placed(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Moved to indexed places; the zeros in between drop out, as a mask does."""
    return [reshuffle(numbers[0], *node.inputs[1:])]


def _extreme(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The largest (smallest) of those that are sent to one place."""
    largest = node.primitive == "scatter-max"
    part = extreme_of_terms(numbers[-1], terms_of_sum(graph, node), largest, *node.outputs)
    if not np.isfinite(numbers[0]).all() or abs(numbers[0]).max(initial=0.0) > _FILL:
        return [part]
    return [(np.maximum if largest else np.minimum)(spread(numbers[0]), part)]


# Beyond this an operand is the fill that any number beats.
_FILL = 1e18

RULES = {
    "dynamic_update_slice": _written,
    "scatter": _written,
    "scatter-add": _added,
    "scatter-sub": _added,
    "scatter-max": _extreme,
    "scatter-min": _extreme,
    "segment_sum": _segment_sum,
    "place": _placed,
}
