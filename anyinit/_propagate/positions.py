"""Where positions meet: pools, products of two positions, and what is taken of some of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from anyinit._classify.averaging import averaging_operand
from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import LEAST_STEPS, Graph, Node


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


def are_followed(
    graph: Graph, traits: Traits, pools: Mapping[int, Pool], repeated: Mapping[int, int]
) -> bool:
    """Whether what positions have in common matters to any number of a model.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        pools: sums and extremes over positions.
        repeated: identities of the weights that are used several times.
    """
    if pools or (repeated and any(pairs_signals(graph, traits, node) for node in graph.nodes)):
        return True
    # A loop over time takes one step after another of a signal; they are alike where features
    # have a mean.
    pending = _sequences(graph, traits)
    seen = set(pending)
    while pending:
        producer = graph.producers[pending.pop()]
        if producer < 0:
            continue
        node = graph.nodes[producer]
        statistic = traits[node.outputs[0]].reduced > 0
        if not statistic and (node.primitive in _MAKES_MEANS or _gates(traits, node)):
            return True
        fresh = [v for v in node.inputs if v not in seen and traits[v].role is Role.SIGNAL]
        seen.update(fresh)
        pending += fresh
    return False


def _sequences(graph: Graph, traits: Traits) -> list[int]:
    """Signals of which a loop over time takes one step after another, written out or not."""
    items = Counter(
        node.inputs[0]
        for node in graph.nodes
        if node.primitive in ("stack_item", "slice")
        and traits[node.inputs[0]].role is Role.SIGNAL
        and takes_positions(graph, traits, node)
    )
    return [value for value, count in items.items() if count >= LEAST_STEPS]


def is_read_for_few_steps(graph: Graph, traits: Traits, value: int) -> bool:
    """Whether only an item or two of a sequence reach the outputs: the last state, as a rule.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        value: the sequence.
    """
    items: set[int] = set()
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        if current in graph.outputs:
            return False
        for node in (graph.nodes[index] for index in graph.consumers[current]):
            if takes_positions(graph, traits, node) and node.inputs[0] == current:
                items.add(node.index)
                continue
            fresh = [v for v in node.outputs if v not in seen]
            seen.update(fresh)
            pending += fresh
    return 0 < len(items) < LEAST_STEPS


# Functions after which a feature has a mean of its own.
_MAKES_MEANS = frozenset(
    """max min exp exp2 logistic cos abs erf erfc log log1p cosh clamp reduce_max
    reduce_window_max""".split()
)


def _gates(traits: Traits, node: Node) -> bool:
    """Whether a node multiplies two signals, other than in a normalization."""
    signals = [traits[v] for v in node.inputs if traits[v].role is Role.SIGNAL]
    norm = any(trait.reduced for trait in signals) or traits[node.outputs[0]].normalizes is not None
    return node.primitive == "mul" and len(signals) == 2 and not norm


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


def pairs_signals(graph: Graph, traits: Traits, node: Node) -> bool:
    """Whether a node contracts two signals and averages neither."""
    return (
        node.primitive == "dot_general"
        and all(traits[value].role is Role.SIGNAL for value in node.inputs)
        and averaging_operand(traits, node) is None
    )


def takes_positions(graph: Graph, traits: Traits, node: Node) -> bool:
    """Whether a node takes a part of a signal along an axis of positions, features whole.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        node: the node.
    """
    if node.primitive not in ("stack_item", "slice", "dynamic_slice"):
        return False
    value, result = node.inputs[0], node.outputs[0]
    before, after = graph.shapes[value], graph.shapes[result]
    flags = traits[value].features
    if node.primitive == "stack_item":
        return not flags[0]
    axes = [
        axis for axis, (all_, some) in enumerate(zip(before, after, strict=True)) if all_ > some
    ]
    return bool(axes) and not any(flags[axis] for axis in axes)
