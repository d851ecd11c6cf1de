"""The walk from a weight's product forward to where something acts on it.

The walk passes constant factors, sums, layout, masks, slices and dropout, in the order of the
graph, so that paths that fork and meet again (z − z/2, rotary embeddings) are one path. What is
not linear and constant is an *event*; the site is the last value that every path to an event
goes through.
"""

from __future__ import annotations

import dataclasses
import heapq

from anyinit._graph import primitives
from anyinit._graph.graph import Node
from anyinit._sites.events import Acts, Structure, event_at, stays_linear
from anyinit._sites.path import Path, passed


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


def land(structure: Structure, start: int, path: Path) -> list[Landing]:
    """Follow a value to its site; several where slices of it go separate ways.

    Arguments:
        structure: the sums and streams of the graph.
        start: the value to begin at.
        path: what was passed before.
    """
    graph = structure.sums.graph
    sweep = _sweep(structure, start, path)
    if not sweep.events:
        return []
    last = _common(sweep, start)
    while statistic := _statistic_in(structure, sweep, last):
        last = statistic
    picks = [graph.nodes[n] for n in structure.sums.live_consumers(last)]
    split = [node for node in picks if node.primitive in primitives.PICK]
    if len({event.node for event in sweep.events}) > 1 and len(split) == len(picks) and split:
        pieces = [value for node in split for value in node.outputs]
        if len(pieces) > 1:
            return [
                landing
                for piece in pieces
                if piece in sweep.paths
                for landing in land(structure, piece, sweep.paths[piece])
            ]
    order = list(Acts)
    events = sorted(sweep.events, key=lambda event: order.index(event.acts))
    return [Landing(events[0].acts, last, sweep.paths[last], tuple(events))]


def _statistic_in(structure: Structure, sweep: _Sweep, value: int) -> int | None:
    """The value that forks into a statistic which a later one contains: x, for x − mean(x)."""
    graph, traits = structure.sums.graph, structure.sums.traits
    producer = graph.producers[value]
    if not sweep.parents.get(value) or producer < 0:
        return None
    inputs = graph.nodes[producer].inputs
    if traits[value].log_sum_of is not None:
        # The statistic of a log-softmax is not walked.
        return next((v for v in inputs if v in sweep.paths), None)
    return next((sweep.inner[v] for v in inputs if v in sweep.inner), None)


def _sweep(structure: Structure, start: int, path: Path) -> _Sweep:
    sweep = _Sweep({start: path}, {start: set()}, {}, [], [], [])
    _reach(structure, sweep, start)
    done: set[int] = set()
    while sweep.heap:
        index = heapq.heappop(sweep.heap)
        if index in done or index in structure.sums.traits.absorbed:
            continue
        done.add(index)
        _step(structure, sweep, structure.sums.graph.nodes[index])
    if not sweep.events:
        # A scalar loss is no site of its own; where nothing else acts, it reads the logits.
        sweep.events += sweep.losses
    return sweep


def _reach(structure: Structure, sweep: _Sweep, value: int) -> None:
    graph = structure.sums.graph
    if value in structure.outputs and value in sweep.paths:
        sweep.events.append(Event(Acts.OUTPUT, -1, value))
    elif value in graph.outputs:
        reached = value if value in sweep.paths else sweep.inner[value]
        sweep.losses.append(Event(Acts.OUTPUT, -1, reached))
    for consumer in graph.consumers[value]:
        heapq.heappush(sweep.heap, consumer)


def _step(structure: Structure, sweep: _Sweep, node: Node) -> None:
    traits = structure.sums.traits
    reached = [value for value in dict.fromkeys(node.inputs) if value in sweep.paths]
    inside = [value for value in dict.fromkeys(node.inputs) if value in sweep.inner]
    event = event_at(structure, node, reached, inside)
    if event is not None:
        acts, residual = event
        for value in dict.fromkeys([*reached, *(sweep.inner[value] for value in inside)]):
            sweep.events.append(Event(acts, node.index, value, residual))
        return
    for value in node.outputs:
        if not traits[value].moves:
            continue
        if reached and stays_linear(structure.sums, node, reached, value):
            sweep.paths[value] = passed(
                structure.sums.graph, traits, sweep.paths, node, reached, value
            )
            sweep.parents[value] = set(reached) | {sweep.inner[v] for v in inside}
        else:
            sweep.inner[value] = reached[0] if reached else sweep.inner[inside[0]]
        _reach(structure, sweep, value)


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
