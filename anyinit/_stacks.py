"""Stacked weights that are read item by item without a scan.

A leaf whose leading axis is only ever read one item at a time, each of them somewhere, is a stack
of weights, whether a scan, an indexed loop or a Python loop reads it: each item is a weight of
its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from anyinit._graph import Builder, Node

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


def _item(builder: Builder, node: Node, value: int) -> int | None:
    """Which item of a stack a node reads, if it reads one whole item and nothing else."""
    shape = builder.shapes[value]
    if node.primitive == "stack_item":
        return int(node.params["item"])
    if node.inputs[0] != value or builder.shapes[node.outputs[0]] != (1, *shape[1:]):
        return None
    if node.primitive == "slice":
        return int(node.params["start_indices"][0])
    if node.primitive == "dynamic_slice":
        start = builder.literals.get(node.inputs[1])
        return None if start is None else int(np.clip(start, 0, shape[0] - 1))
    return None


def _separated(builder: Builder, node: Node, item: int) -> list[Node]:
    whole, part = node.inputs[0], node.outputs[0]
    shape = builder.shapes[whole][1:]
    inner = builder.value(jax.ShapeDtypeStruct(shape, builder.dtypes[whole]), from_parameters=True)
    take = dataclasses.replace(
        node,
        primitive="stack_item",
        params={"item": item},
        inputs=(whole,),
        outputs=(inner,),
        equation=None,
    )
    layout = {"new_sizes": (1, *shape), "dimensions": None, "sharding": None}
    keep = dataclasses.replace(
        node, primitive="reshape", params=layout, inputs=(inner,), outputs=(part,), equation=None
    )
    return [take, keep]
