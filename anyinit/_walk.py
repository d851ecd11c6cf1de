"""The walk from a weight's product forward to where something acts on it.

The walk passes constant factors, sums, layout, masks, slices and dropout, in the order of the
graph, so that paths that fork and meet again (z − z/2, rotary embeddings) are one path. What is
not linear and constant is an *event*; the site is the last value that every path to an event
goes through.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import math

import numpy as np

from anyinit import _primitives as primitives
from anyinit._graph import Node
from anyinit._lineage import constant_factor, kept_share
from anyinit._rules.linear import averages
from anyinit._signal import moment
from anyinit._sums import Residual, Sums, is_sum
from anyinit._traits import Role, Trait


class Acts(enum.Enum):
    """What acts at a site, from the most to the least telling where several do."""

    RESIDUAL = "residual stream"
    OUTPUT = "output"
    NONLINEARITY = "nonlinearity"
    STREAM = "start of a stream"
    WEIGHT = "another weight"
    PRODUCT = "product of two signals"
    POOLING = "pooling"
    NORMALIZATION = "normalization"


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """What a walk has passed on the way to a value.

    Arguments:
        factor: product of the constant factors, with its sign.
        gain: factor on the second moment, of everything passed.
        view: which slices were taken: only equal views of one product add in step.
    """

    factor: float = 1.0
    gain: float = 1.0
    view: int = 0

    def scaled(self, factor: float) -> Path:
        return dataclasses.replace(
            self, factor=self.factor * factor, gain=self.gain * factor * factor
        )


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that acts on the value that a walk has reached."""

    acts: Acts
    node: int
    value: int
    residual: int | None = None


@dataclasses.dataclass(frozen=True)
class Landing:
    """Where a walk ends.

    Arguments:
        acts: what acts there.
        value: the value at the site.
        path: what was passed up to it.
        events: everything that acts on it.
    """

    acts: Acts
    value: int
    path: Path
    events: tuple[Event, ...]


@dataclasses.dataclass
class _Sweep:
    paths: dict[int, Path]
    parents: dict[int, set[int]]
    inner: dict[int, int]
    events: list[Event]
    heap: list[int]
    losses: list[Event]


def land(
    sums: Sums, residuals: dict[int, Residual], outputs: frozenset[int], start: int, path: Path
) -> list[Landing]:
    """Follow a value to its site; several where slices of it go separate ways."""
    sweep = _sweep(sums, residuals, outputs, start, path)
    if not sweep.events:
        return []
    last = _common(sweep, start)
    while statistic := _statistic_in(sums, sweep, last):
        last = statistic
    picks = [sums.graph.nodes[n] for n in sums.live_consumers(last)]
    split = [node for node in picks if node.primitive in primitives.PICK]
    if len({event.node for event in sweep.events}) > 1 and len(split) == len(picks) and split:
        pieces = [value for node in split for value in node.outputs]
        if len(pieces) > 1:
            return [
                landing
                for piece in pieces
                if piece in sweep.paths
                for landing in land(sums, residuals, outputs, piece, sweep.paths[piece])
            ]
    order = list(Acts)
    events = sorted(sweep.events, key=lambda event: order.index(event.acts))
    return [Landing(events[0].acts, last, sweep.paths[last], tuple(events))]


def _statistic_in(sums: Sums, sweep: _Sweep, value: int) -> int | None:
    """The value that forks into a statistic which a later one contains: x, for x − mean(x)."""
    producer = sums.graph.producers[value]
    if not sweep.parents.get(value) or producer < 0:
        return None
    inputs = sums.graph.nodes[producer].inputs
    if sums.traits[value].log_sum_of is not None:
        # The statistic of a log-softmax is not walked.
        return next((v for v in inputs if v in sweep.paths), None)
    return next((sweep.inner[v] for v in inputs if v in sweep.inner), None)


def _sweep(
    sums: Sums, residuals: dict[int, Residual], outputs: frozenset[int], start: int, path: Path
) -> _Sweep:
    sweep = _Sweep({start: path}, {start: set()}, {}, [], [], [])
    _reach(sums, outputs, sweep, start)
    done: set[int] = set()
    while sweep.heap:
        index = heapq.heappop(sweep.heap)
        if index in done or index in sums.traits.absorbed:
            continue
        done.add(index)
        node = sums.graph.nodes[index]
        _step(sums, residuals, outputs, sweep, node)
    if not sweep.events:
        # A scalar loss is no site of its own; where nothing else acts, it reads the logits.
        sweep.events += sweep.losses
    return sweep


def _reach(sums: Sums, outputs: frozenset[int], sweep: _Sweep, value: int) -> None:
    if value in outputs and value in sweep.paths:
        sweep.events.append(Event(Acts.OUTPUT, -1, value))
    elif value in sums.graph.outputs:
        reached = value if value in sweep.paths else sweep.inner[value]
        sweep.losses.append(Event(Acts.OUTPUT, -1, reached))
    for consumer in sums.graph.consumers[value]:
        heapq.heappush(sweep.heap, consumer)


def _step(
    sums: Sums, residuals: dict[int, Residual], outputs: frozenset[int], sweep: _Sweep, node: Node
) -> None:
    reached = [value for value in dict.fromkeys(node.inputs) if value in sweep.paths]
    inside = [value for value in dict.fromkeys(node.inputs) if value in sweep.inner]
    event = _event(sums, residuals, sweep, node, reached, inside)
    if event is not None:
        acts, residual = event
        for value in dict.fromkeys([*reached, *(sweep.inner[value] for value in inside)]):
            sweep.events.append(Event(acts, node.index, value, residual))
        return
    for value in node.outputs:
        if not sums.traits[value].moves:
            continue
        if reached and _stays_linear(sums, node, reached, value):
            sweep.paths[value] = _passed(sums, sweep, node, reached, value)
            sweep.parents[value] = set(reached) | {sweep.inner[v] for v in inside}
        else:
            sweep.inner[value] = reached[0] if reached else sweep.inner[inside[0]]
        _reach(sums, outputs, sweep, value)


def _stays_linear(sums: Sums, node: Node, reached: list[int], value: int) -> bool:
    """Whether a node's result is still the walked value, not a statistic of it."""
    trait, before = sums.traits[value], sums.traits[reached[0]]
    if node.primitive in primitives.ADDITIONS | primitives.PICK | primitives.JOIN:
        return True
    if trait.base != before.base:
        return True
    return trait.reduced == before.reduced and math.isclose(trait.degree, before.degree)


def _event(
    sums: Sums,
    residuals: dict[int, Residual],
    sweep: _Sweep,
    node: Node,
    reached: list[int],
    inside: list[int],
) -> tuple[Acts, int | None] | None:
    """What a node does to the walked value, or ``None`` where the walk goes on."""
    traits, name = sums.traits, node.primitive
    walked = (reached or inside)[0]
    result = traits[node.outputs[0]]
    layout = name in primitives.IDENTITY | primitives.SHAPE
    if result.normalizes == traits[walked].base and not layout:
        return Acts.NORMALIZATION, None
    others = [value for value in node.inputs if value not in reached and value not in inside]
    moving = [value for value in others if traits[value].moves]
    same_base = result.base == traits[walked].base
    if name in primitives.ADDITIONS:
        return _added(sums, residuals, node, reached, inside, same_base)
    if name in primitives.CONTRACTIONS:
        if not reached and _is_pooled(traits[walked]):
            return Acts.POOLING, None
        return _contracted(sums, node, walked, moving, same_base)
    if not reached:
        # A statistic goes on as long as it scales with the walked value.
        if same_base and not moving:
            return None
        if name in primitives.IDENTITY | primitives.SHAPE:
            return None
        return (Acts.POOLING if _is_pooled(traits[walked]) else Acts.NONLINEARITY), None
    if name in primitives.IDENTITY | primitives.SHAPE | primitives.PICK | {"neg"}:
        return (Acts.NONLINEARITY, None) if walked != node.inputs[0] else None
    if name in primitives.JOIN:
        return None
    if name == "select_n":
        predicate = traits[node.inputs[0]]
        computed = predicate.role is Role.SIGNAL or node.inputs[0] in (*reached, *inside)
        return (Acts.NONLINEARITY, None) if computed else None
    if name in ("mul", "div"):
        if same_base and (len(moving) == 0):
            return None
        signals = [value for value in moving if traits[value].role is Role.SIGNAL]
        if inside or (len(reached) > 1) or (name == "div" and walked != node.inputs[0]):
            return Acts.NONLINEARITY, None
        if not signals:
            return None if node.inputs.count(walked) == 1 else (Acts.NONLINEARITY, None)
        if any(_written_out(sums, reached, value) for value in signals):
            return Acts.NONLINEARITY, None
        return Acts.PRODUCT, None
    if name == "reduce_sum" or (name in primitives.REDUCTIONS and same_base):
        return (Acts.POOLING, None) if name == "reduce_window_sum" else None
    if name in ("reduce_window_sum", "cumsum", "psum"):
        return Acts.POOLING, None
    if same_base and name not in primitives.EXTREMES:
        return None
    return Acts.NONLINEARITY, None


def _is_pooled(trait: Trait) -> bool:
    """Whether a statistic scales as what it was computed from: a sum, a mean or an extreme."""
    return trait.reduced > 0 and trait.degree == 1.0


def _added(
    sums: Sums,
    residuals: dict[int, Residual],
    node: Node,
    reached: list[int],
    inside: list[int],
    same_base: bool,
) -> tuple[Acts, int | None] | None:
    traits = sums.traits
    if inside:
        statistic = all(traits[value].reduced for value in inside)
        if same_base or (reached and statistic and traits[inside[0]].log_sum_of is not None):
            return None
        return Acts.NONLINEARITY, None
    if not is_sum(traits, node) or len(reached) > 1:
        return None
    root = sums.root(node.outputs[0])
    residual = residuals.get(root)
    if residual is not None:
        if any(term.chain & set(reached) for term in residual.branches):
            return Acts.RESIDUAL, root
        if residual.stream_chain & set(reached):
            return Acts.STREAM, root
    others = [value for value in node.inputs if value not in reached]
    log_softmax = traits[node.outputs[0]].log_sum_of is not None
    if any(_written_out(sums, reached, value) for value in others) and not log_softmax:
        return Acts.NONLINEARITY, None
    return None


def _written_out(sums: Sums, reached: list[int], other: int) -> bool:
    """Whether an operand was computed from the walked value without a weight in between."""
    return any(sums.ancestry.is_near(value, other) for value in reached)


def _contracted(
    sums: Sums, node: Node, walked: int, moving: list[int], same_base: bool
) -> tuple[Acts, int | None] | None:
    traits = sums.traits
    if not moving:
        return None if same_base else (Acts.WEIGHT, None)
    other = moving[0]
    if traits[other].role in (Role.WEIGHT, Role.DERIVED):
        return Acts.WEIGHT, None
    if traits[other].one_hot and not averages(sums.graph, traits, node, node.inputs.index(other)):
        return None
    return Acts.PRODUCT, None


def _passed(sums: Sums, sweep: _Sweep, node: Node, reached: list[int], value: int) -> Path:
    """The path after a linear node."""
    paths = [sweep.paths[v] for v in reached]
    path = paths[0]
    name = node.primitive
    if name in primitives.PICK:
        view = hash((path.view, node.index, node.outputs.index(value)))
        return dataclasses.replace(path, view=view)
    if name == "neg":
        return path.scaled(-1.0)
    if name in primitives.ADDITIONS:
        return _merged(sums, sweep, node, reached, paths)
    if name == "select_n":
        # Under a dropout mask the kept share belongs to the moment, too.
        share = kept_share(sums.traits, node, reached[0])
        return dataclasses.replace(path, factor=path.factor * share, gain=path.gain * share)
    if name not in ("mul", "div"):
        return path
    for other in node.inputs:
        if other not in reached:
            path = _multiplied(sums, node, other, path)
    return path


def _merged(sums: Sums, sweep: _Sweep, node: Node, reached: list[int], paths: list[Path]) -> Path:
    if len(paths) == 1:
        if node.inputs.count(reached[0]) == 2:
            return paths[0].scaled(2.0 if node.primitive != "sub" else 0.0)
        negative = node.primitive == "sub" and node.inputs[1] == reached[0]
        return paths[0].scaled(-1.0) if negative else paths[0]
    by_value = {value: sweep.paths[value] for value in reached}
    left, right = (by_value[value] for value in node.inputs)
    sign = -1.0 if node.primitive == "sub" else 1.0
    if left.view != right.view:
        return dataclasses.replace(left, gain=left.gain + right.gain)
    factor = left.factor + sign * right.factor
    scale = left.gain / left.factor**2 if left.factor else 1.0
    return dataclasses.replace(left, factor=factor, gain=scale * factor**2)


def _multiplied(sums: Sums, node: Node, other: int, path: Path) -> Path:
    trait = sums.traits[other]
    if trait.moves or trait.role is Role.OPAQUE:
        return path
    numbers = sums.traits.known[other]
    if node.primitive == "div":
        with np.errstate(all="ignore"):
            numbers = 1.0 / numbers.astype(np.float64)
    factor = constant_factor(sums.traits, other)
    factor = 1.0 / factor if node.primitive == "div" and factor else factor
    return dataclasses.replace(path, factor=path.factor * factor, gain=path.gain * moment(numbers))


def _common(sweep: _Sweep, start: int) -> int:
    """The last value that every path to an event goes through."""
    dominators: dict[int, list[int]] = {start: [start]}
    for value in sorted(sweep.parents):
        if value == start:
            continue
        chains = [dominators[parent] for parent in sweep.parents[value] if parent in dominators]
        dominators[value] = [*_shared(chains), value] if chains else [start, value]
    ends = [dominators[event.value] for event in sweep.events]
    return _shared(ends)[-1]


def _shared(chains: list[list[int]]) -> list[int]:
    shortest = min(chains, key=len)
    for position, value in enumerate(shortest):
        if any(chain[position] != value for chain in chains):
            return shortest[:position]
    return list(shortest)
