"""Which uses are of one weight, and which weights feed back into themselves in a loop."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from anyinit._classify.traits import Role, Source, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import contracted_axes
from anyinit._graph.graph import LEAST_STEPS, Graph
from anyinit._sites.uses import Meeting, Use

# What adds a bias to a signal, or a gain to it.
_WITH_A_VECTOR = primitives.ADDITIONS | {"mul", "div"}


def repeated_uses(graph: Graph, traits: Traits, uses: Sequence[Use]) -> Mapping[int, int]:
    """For each product of a weight that is used several times, what identifies the weight.

    Two uses have the same identity when they contract the same numbers along the same axes.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        uses: all uses of weights.

    Returns:
        The identity of each such use by the index of its node.
    """
    found = identities(graph, traits, uses)
    counts = Counter(found.values())
    return {index: identity for index, identity in found.items() if counts[identity] > 1}


def identities(graph: Graph, traits: Traits, uses: Sequence[Use]) -> Mapping[int, int]:
    """What identifies the weight of each contraction, by the index of its node.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        uses: all uses of weights.
    """
    known: dict[int, int] = {}
    return {
        use.node: _identity(graph, traits, known, use)
        for use in uses
        if use.meeting is Meeting.CONTRACTION
    }


def recurrent_limits(
    graph: Graph, traits: Traits, repeated: Mapping[int, int], uses: Sequence[Use]
) -> Mapping[Source, float]:
    """The largest scale, 1/√fan_in, of each weight that feeds back into itself in a loop.

    The loop is one that was written out, or a Python loop over time: a weight whose product enters
    its own next input, while every step takes in something new: through another shared weight, or
    as the next part of one signal. (A block that is called several times on its own output takes in
    nothing new: it is no recurrence.)

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        repeated: identities of the weights that are used several times.
        uses: all uses of weights.
    """
    steps: dict[int, list[Use]] = {}
    for use in uses:
        if use.node in repeated:
            steps.setdefault(repeated[use.node], []).append(use)
    limits: dict[Source, float] = {}
    for own in steps.values():
        if len(own) < 2:
            continue
        looped = not graph.nodes[own[0].node].last_step
        after = _reached(graph, own[0].value, own[-1].node)
        fed_back = own[-1].signal in after
        if fed_back and (looped or _takes_in(graph, traits, own, list(steps.values()))):
            limits.update(dict.fromkeys(own[-1].sources, own[-1].fan ** -0.5))
    return limits


def _takes_in(
    graph: Graph, traits: Traits, own: Sequence[Use], all_steps: Sequence[Sequence[Use]]
) -> bool:
    """Whether each step of a Python loop over time takes in something new."""
    if len(own) < LEAST_STEPS:
        return False
    first, second, third = own[:LEAST_STEPS]
    before = _reached(graph, first.value, third.node)
    if second.signal not in before:
        return False
    for other in all_steps:
        inside = [use for use in other if first.node < use.node < third.node]
        new = [use for use in inside if use.signal not in before]
        if any(third.signal in _reached(graph, use.value, third.node) for use in new):
            return True
    one = _parts_taken(graph, traits, before, first.node, second.node)
    two = _parts_taken(graph, traits, before, second.node, third.node)
    return any(two[whole].isdisjoint(parts) for whole, parts in one.items() if whole in two)


def _parts_taken(
    graph: Graph, traits: Traits, inside: Set[int], start: int, stop: int
) -> Mapping[int, set[object]]:
    """Which parts of other signals a step takes in, by the signal.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        inside: the values that are computed from an earlier step.
        start: node with which the step begins.
        stop: node with which the next one begins.
    """
    found: dict[int, set[object]] = {}
    for node in graph.nodes[start + 1 : stop]:
        if inside.isdisjoint(node.outputs):
            continue
        for value in set(node.inputs) - inside:
            whole, how = _part_of(graph, traits, value)
            if how and traits[value].role is Role.SIGNAL:
                found.setdefault(whole, set()).add(how)
    return found


def _part_of(graph: Graph, traits: Traits, value: int) -> tuple[int, tuple[object, ...]]:
    """What a value is a part of, and which; of a whole value, itself."""
    how: list[object] = []
    while (node := graph.producer(value)) is not None:
        signals = [v for v in node.inputs if traits[v].role is Role.SIGNAL]
        if node.primitive in primitives.PICK:
            places = tuple(_constant(traits, v) for v in node.inputs[1:])
            which = repr(sorted(node.params.items(), key=str)), node.outputs.index(value)
            how.append((node.primitive, which, places))
        elif node.primitive not in primitives.LAYOUT | _WITH_A_VECTOR or len(signals) != 1:
            break
        value = signals[0] if len(signals) == 1 else node.inputs[0]
    return value, tuple(how)


def _reached(graph: Graph, value: int, last: int) -> set[int]:
    """Every value that is computed from one, up to a node."""
    pending, seen = [value], {value}
    while pending:
        for index in graph.consumers[pending.pop()]:
            if index < last:
                fresh = set(graph.nodes[index].outputs) - seen
                seen |= fresh
                pending += fresh
    return seen


def _identity(graph: Graph, traits: Traits, known: dict[int, int], use: Use) -> int:
    node = graph.nodes[use.node]
    axes = contracted_axes(node, node.inputs.index(use.weight))
    return hash((_expression(graph, traits, known, use.weight), axes))


def _constant(traits: Traits, value: int) -> object:
    """The number that a value is, written anew at each use of a weight; else the value itself."""
    number = traits.constant(value)
    return value if number is None else ("number", number)


def _expression(graph: Graph, traits: Traits, known: dict[int, int], value: int) -> int:
    """A number that is the same for values computed from the same weights in the same way."""
    if value not in known:
        producer = graph.producers[value]
        if producer < 0 or traits[value].role is not Role.WEIGHT:
            known[value] = hash((traits[value].role, _constant(traits, value)))
        else:
            node = graph.nodes[producer]
            parameters = zlib.crc32(repr(sorted(node.params.items(), key=str)).encode())
            operands = tuple(_expression(graph, traits, known, v) for v in node.inputs)
            place = node.outputs.index(value)
            known[value] = hash((node.primitive, parameters, place, operands))
    return known[value]
