"""One weight used several times: what its uses produce is as alike as what enters them.

The products of one weight with two signals are jointly normal, with the correlation of the signals:
the gates of successive steps of a recurrent network, the two towers of a siamese one. A fresh
variable a use would make them independent. A weight that is met again transposed (the decoder of a
tied autoencoder, a power iteration) hands back a share of what entered it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._contraction import contracted_axes
from anyinit._graph import Graph
from anyinit._signal import NOISE, moment, spread
from anyinit._traits import Role, Source, Traits
from anyinit._uses import Meeting, Use

# Earlier uses that a product is correlated with.
_REMEMBERED = 4

# Fewer uses of a weight in a row are no loop over time.
_LEAST_STEPS = 3

# Keeps nearly equal signals solvable.
_RIDGE = 1e-6

Memory = dict[int, list[tuple[np.ndarray, np.ndarray]]]


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
    graph: Graph, repeated: Mapping[int, int], uses: Sequence[Use]
) -> Mapping[Source, float]:
    """The largest scale, 1/√fan_in, of each weight that feeds back into itself in a loop.

    The loop is one that was written out, or a Python loop over time: a weight whose product enters
    its own next input, while at every step another shared weight brings in something new. (A block
    that is called several times on its own output takes in nothing new: it is no recurrence.)

    Arguments:
        graph: the flattened model.
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
        if fed_back and (looped or _takes_in(graph, own, list(steps.values()))):
            limits.update(dict.fromkeys(own[-1].sources, own[-1].fan ** -0.5))
    return limits


def _takes_in(graph: Graph, own: Sequence[Use], all_steps: Sequence[Sequence[Use]]) -> bool:
    """Whether a shared weight brings something new into each step of a Python loop over time."""
    if len(own) < _LEAST_STEPS:
        return False
    second, third = own[1], own[2]
    before = _reached(graph, own[0].value, third.node)
    if second.signal not in before:
        return False
    for other in all_steps:
        inside = [use for use in other if own[0].node < use.node < third.node]
        new = [use for use in inside if use.signal not in before]
        if any(third.signal in _reached(graph, use.value, third.node) for use in new):
            return True
    return False


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


@dataclasses.dataclass(frozen=True)
class Transposed:
    """The same weight, met before along its other axes.

    Arguments:
        identity: what identifies it there.
        fan: number of elements that the product sums over now, relative to then.
    """

    identity: int
    fan: float


def remembered_uses(
    uses: Mapping[int, Use], repeated: Mapping[int, int], *, everywhere: bool
) -> Mapping[int, tuple[int, Transposed | None]]:
    """The uses whose products are remembered, by the index of their node.

    Arguments:
        uses: the uses by the index of their node.
        repeated: identities of the weights that are used several times along the same axes.
        everywhere: whether every product is remembered, for what other positions make of it.

    Returns:
        What identifies the weight, and the same weight along its other axes, if it was met before.
    """
    met_again = {use.transposes for use in uses.values()}
    found: dict[int, tuple[int, Transposed | None]] = {}
    for index, use in uses.items():
        earlier = None if use.transposes is None else uses.get(use.transposes)
        transposed = None
        if earlier is not None:
            identity = repeated.get(earlier.node, -1 - earlier.node)
            transposed = Transposed(identity, use.fan / earlier.fan)
        if index in repeated or index in met_again or transposed is not None or everywhere:
            found[index] = (repeated.get(index, -1 - index), transposed)
    return found


def in_step(
    memory: Memory,
    identity: int,
    entering: np.ndarray,
    product: np.ndarray,
    transposed: Transposed | None = None,
) -> np.ndarray:
    """The product of a weight, as its earlier products make it likely.

    It is correlated with them as the signals are. With z = W·x behind it, Wᵀ·y has besides a part
    along x: E[W_ji·y_j | x] = σ²·E[f′(z)]·x_i for y = f(z) (Stein 1981).

    Arguments:
        memory: earlier signals and products of each identity; changed in place.
        identity: which weight this is.
        entering: samples of the signal.
        product: samples of a fresh normal product.
        transposed: the same weight along its other axes, if it was met before.
    """
    scale = np.sqrt(moment(product))
    size = np.sqrt(moment(entering))
    known = scale > 0 and size > 0 and np.isfinite(scale) and np.isfinite(size)
    if not known or "c" in (entering.dtype.kind, product.dtype.kind):
        return product
    signal, result = spread(entering) / size, spread(product) / scale
    news = signal
    earlier = memory.setdefault(identity, [])
    if earlier:
        signals = np.stack([before for before, _ in earlier])
        weights = _regression(signals, signals @ signal / signal.size)
        explained = weights @ np.stack([after for _, after in earlier])
        news = signal - weights @ signals
        rest = max(0.0, 1.0 - float(weights @ (signals @ signal)) / signal.size)
        known = 1.0 - rest if transposed is None else moment(explained)
        result = explained + np.sqrt(rest) * result
        result = result * np.sqrt((known + rest) / moment(result))
    if transposed is not None:
        result = result + _handed_back(memory, transposed, news)
    memory[identity] = [(signal, result), *earlier][:_REMEMBERED]
    return np.asarray(scale * result)


def _handed_back(memory: Memory, transposed: Transposed, news: np.ndarray) -> np.ndarray | float:
    """The part of a transposed product that lies along what entered the weight before.

    Arguments:
        memory: earlier signals and products of each identity.
        transposed: the weight along its other axes.
        news: what the signal has that no earlier signal of this product had.
    """
    earlier = memory.get(transposed.identity, [])
    if not earlier:
        return 0.0
    signals = np.stack([before for before, _ in earlier])
    products = np.stack([after for _, after in earlier])
    alike = products @ news / news.size
    noise = NOISE * np.sqrt(moment(news))
    alike = np.where(np.abs(alike) > noise, alike, 0.0)
    back = np.sqrt(transposed.fan) * (_regression(signals, alike) @ signals)
    return np.asarray(back)


def _regression(signals: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """The weights of signals in the best linear guess of what is so much alike to each of them."""
    among = signals @ signals.T / signals.shape[1] + _RIDGE * np.eye(len(signals))
    return np.asarray(np.linalg.solve(among, alike))


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
