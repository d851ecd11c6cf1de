"""Primitives that move numbers: the marginal distribution stays, the places may change."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import swaps_places
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import mixture, reshuffle, swapped


def _same(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    return [numbers[i] if i < len(numbers) else numbers[0] for i in range(len(node.outputs))]


def _transpose(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Other elements where the shape stays; transposed twice, the same again."""
    if not swaps_places(graph, node) or numbers[0].ndim == 0:
        return [numbers[0]]
    return [swapped(numbers[0], zlib.crc32(repr(node.params["permutation"]).encode()))]


def _pick(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Reshuffled, keyed by the parameters: the same slice twice is identical.

    The same slice of two values keeps them paired: gates and states of a step stay in step.
    """
    results = []
    for position, value in enumerate(node.outputs):
        if graph.shapes[value] == graph.shapes[node.inputs[0]] and node.primitive == "slice":
            results.append(numbers[0])
            continue
        results.append(reshuffle(numbers[0], pick_key(node, position)))
    return results


def pick_key(node: Node, position: int) -> int:
    """A number for which part of its source a node takes.

    Arguments:
        node: a slice, an item of a stack or the like.
        position: which of its results.
    """
    chosen = [str(node.params.get(name)) for name in _KEYS if name in node.params]
    return zlib.crc32(repr((node.primitive, position, chosen, node.inputs[1:])).encode())


# Parameters that say which part of the source is taken.
_KEYS = (
    "start_indices",
    "limit_indices",
    "strides",
    "dimensions",
    "sizes",
    "axis",
    "item",
    "padding_config",
)


def _sort(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    return [reshuffle(samples, node.outputs[0]) for samples in numbers]


def _join(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A mixture by share."""
    shares = [float(graph.size(value)) for value in node.inputs]
    return [mixture(list(numbers), shares, *node.outputs)]


def _pad(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """A constant fill around a signal drops out; around a constant it counts by share.

    A negative width cuts off: what is left are other places, as in a slice.
    """
    if traits[node.inputs[0]].role >= Role.WEIGHT:
        cut = any(min(low, high) < 0 for low, high, _ in node.params["padding_config"])
        return [reshuffle(numbers[0], pick_key(node, 0)) if cut else numbers[0]]
    inside, total = graph.size(node.inputs[0]), graph.size(node.outputs[0])
    shares = [float(min(inside, total)), float(max(total - inside, 0))]
    return [mixture(list(numbers), shares, *node.outputs)]


RULES = {
    **dict.fromkeys(primitives.LAYOUT - {"convert_element_type", "real", "imag"}, _same),
    **dict.fromkeys(primitives.PICK - {"sort"}, _pick),
    "transpose": _transpose,
    "sort": _sort,
    "concatenate": _join,
    "stack": _join,
    "pad": _pad,
}
