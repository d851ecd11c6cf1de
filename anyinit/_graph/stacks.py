"""Stacks that are read item by item, whether a scan, an indexed loop or a Python loop reads them.

A leaf whose leading axis is only ever read one item at a time, each of them somewhere, is a stack
of weights: each item is a weight of its own. An item of what a scan has stacked is what that step
has computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anyinit._graph import primitives
from anyinit._graph.graph import Builder, Graph, Node

# A table of vectors (positions, embeddings) is no stack: its rows are not weights of their own.
_LEAST_RANK = 3


def separate_items(builder: Builder, parameters: Sequence[int]) -> None:
    """Read every stack in the builder's nodes through ``stack_item``.

    Arguments:
        builder: holds the nodes, calls and loops already written out.
        parameters: values of the model's parameters.
    """
    stacks = {value for value in parameters if len(builder.shapes[value]) >= _LEAST_RANK}
    readers: dict[int, list[Node]] = {}
    for node in builder.nodes:
        for value in stacks.intersection(node.inputs):
            readers.setdefault(value, []).append(node)
    _read_through(builder)
    items: dict[int, int] = {}
    for value, nodes in readers.items():
        found = {id(node): _item(builder, node, value) for node in nodes}
        if set(found.values()) == set(range(builder.shapes[value][0])):
            items |= {key: item for key, item in found.items() if item is not None}
    if items:
        builder.nodes = [
            piece
            for node in builder.nodes
            for piece in (
                _separated(builder, node, items[id(node)])
                if id(node) in items and node.primitive != "stack_item"
                else [node]
            )
        ]


@dataclasses.dataclass(frozen=True)
class _View:
    """What a scan has collected, with its axes in another order, or backwards.

    Arguments:
        source: the value that was collected, its steps along the first axis.
        order: which axis of it each axis is.
        backwards: whether its steps are reversed.
    """

    source: int
    order: tuple[int, ...]
    backwards: bool = False


def _read_through(builder: Builder) -> None:
    """Let the readers of an item of what a scan has collected read that step's own result."""
    steps: dict[int, Sequence[int]] = {}
    views: dict[int, _View] = {}
    for position, node in enumerate(builder.nodes):
        if node.primitive == "stack" and node.equation is None:
            steps[node.outputs[0]] = node.inputs
        elif node.primitive == "settle":
            steps[node.outputs[0]] = node.params["steps"]
        elif node.inputs:
            value = node.inputs[0]
            view = views.get(value, _View(value, tuple(range(len(builder.shapes[value])))))
            further = _viewed(view, node)
            item = _item_of(builder, node, view)
            parts = steps.get(view.source, ())
            if further is not None:
                views[node.outputs[0]] = further
            elif item is not None and parts:
                count = builder.shapes[view.source][0]
                item = count - 1 - item if view.backwards else item
                step = parts[_written_step(item, len(parts), count)]
                builder.nodes[position] = _laid_out(builder, node, step)


def _viewed(view: _View, node: Node) -> _View | None:
    """A view transposed, or with its steps reversed; ``None`` for what else a node does."""
    if node.primitive == "transpose":
        order = tuple(view.order[axis] for axis in node.params["permutation"])
        return dataclasses.replace(view, order=order)
    if node.primitive == "rev" and [view.order[d] for d in node.params["dimensions"]] == [0]:
        return dataclasses.replace(view, backwards=not view.backwards)
    return None


def _item_of(builder: Builder, node: Node, view: _View) -> int | None:
    """Which item of its source a node reads of a view, if it reads one whole item in its order."""
    if 0 not in view.order or list(view.order) == [0]:
        return None
    axis = view.order.index(0)
    rest = [place for place in view.order if place != 0]
    return _item(builder, node, node.inputs[0], axis) if rest == sorted(rest) else None


def _written_step(item: int, written: int, count: int) -> int:
    """Which written-out step stands for an item of what a loop of ``count`` steps has collected.

    A loop over time that was cut off at the cap has not written out all of its steps. Those that it
    has stand for the first ones and for the last ones alike, each next to its own neighbours: what
    steps have in common with the next is what a second loop over them depends on.
    """
    if item < written:
        return item
    return max(written - (count - item), 0)


def is_stack(graph: Graph, value: int) -> bool:
    """Whether each item of a value is a weight of its own: a leaf that is only read item by item.

    What is scanned may also be a view of a leaf (reshaped, reversed), or a leaf that is
    read whole elsewhere: its items are then parts of one weight.

    Arguments:
        graph: the flattened model.
        value: what items are taken of.
    """
    if any(graph.nodes[n].primitive != "stack_item" for n in graph.consumers[value]):
        return False
    producer = graph.producers[value]
    if producer < 0:
        return True
    node = graph.nodes[producer]
    if node.primitive == "stack_item":
        return is_stack(graph, node.inputs[0])
    same = node.primitive in primitives.IDENTITY | {"transpose"}
    plain = same and len(graph.consumers[node.inputs[0]]) == 1
    return plain and graph.producers[node.inputs[0]] < 0


def layer_axes(graph: Graph, leaf: int) -> tuple[int, ...]:
    """The axes of a leaf along which its items are weights of their own, the outermost first.

    A scan may run over any axis: what it reads is then a transposition of the leaf.

    Arguments:
        graph: the flattened model.
        leaf: a leaf of the parameters.
    """
    axes: list[int] = []
    value, places = leaf, list(range(len(graph.shapes[leaf])))
    while graph.consumers[value]:
        node = graph.nodes[graph.consumers[value][0]]
        if node.primitive == "stack_item" and is_stack(graph, value):
            axes.append(places.pop(0))
        elif node.primitive == "transpose":
            places = [places[axis] for axis in node.params["permutation"]]
        elif node.primitive not in primitives.IDENTITY:
            break
        value = node.outputs[0]
    return tuple(axes)


def _item(builder: Builder, node: Node, value: int, axis: int = 0) -> int | None:
    """Which item along an axis a node reads, if it reads one whole item and nothing else."""
    shape = builder.shapes[value]
    if node.primitive == "stack_item":
        return int(node.params["item"]) if axis == 0 else None
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    if not shape or node.inputs[0] != value or builder.shapes[node.outputs[0]] != one:
        return None
    if node.primitive == "slice":
        return int(node.params["start_indices"][axis])
    if node.primitive == "dynamic_slice":
        start = builder.literals.get(node.inputs[1 + axis])
        return None if start is None else int(np.clip(start, 0, shape[axis] - 1))
    return None


def _separated(builder: Builder, node: Node, item: int) -> list[Node]:
    whole = node.inputs[0]
    inner = builder.like(whole, builder.shapes[whole][1:])
    take = dataclasses.replace(
        node,
        primitive="stack_item",
        params={"item": item},
        inputs=(whole,),
        outputs=(inner,),
        equation=None,
    )
    return [take, _laid_out(builder, node, inner)]


def _laid_out(builder: Builder, node: Node, value: int) -> Node:
    """A node that writes a value in the shape of what another node wrote."""
    sizes = builder.shapes[node.outputs[0]]
    layout = {"new_sizes": sizes, "dimensions": None, "sharding": None}
    return dataclasses.replace(
        node, primitive="reshape", params=layout, inputs=(value,), equation=None
    )
