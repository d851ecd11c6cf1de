"""A vector that is added to fused gates is added to each gate by itself.

Recurrent layers compute all gates in one product, add one bias and split the sum. The bias of one
gate may be 1 and that of the others 0: which numbers a gate sees shows only once its part of the
bias is taken apart from the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax

from anyinit._graph.graph import Builder, Node, before_layout


def split_before_adding(builder: Builder) -> None:
    """Write every part of (x + vector) as (part of x) + (part of the vector).

    Between the sum and its parts may lie steps that are taken of a sequence and further additions:
    a projection of all steps before the loop, to which each step adds its state's.

    Arguments:
        builder: its nodes are replaced in place.
    """
    producers = {value: node for node in builder.nodes for value in node.outputs}
    readers: dict[int, list[Node]] = {}
    for node in builder.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    to_parts = _leading_to_parts(builder, readers)
    sums: dict[int, tuple[int, int]] = {}
    nodes, builder.nodes = builder.nodes, []
    for node in nodes:
        result = node.outputs[0]
        summed = next((value for value in node.inputs if value in sums), None)
        if node.primitive == "add" and result in to_parts:
            found = _vector(builder, producers, node)
            if found is not None:
                sums[result] = found
        if summed is None or result in sums:
            builder.nodes.append(node)
        elif _along_last(builder, node):
            _write_apart(builder, node, *sums[summed])
        elif result in to_parts:
            sums[result] = _add_later(builder, node, summed, *sums[summed])
        else:
            builder.nodes.append(node)


def _leading_to_parts(builder: Builder, readers: Mapping[int, Sequence[Node]]) -> Set[int]:
    """Values that are read for parts along their last axis alone, at once or further on."""
    found: set[int] = set()
    for node in reversed(builder.nodes):
        for value in node.outputs:
            reading = readers.get(value, ())
            if reading and all(
                _along_last(builder, n) or _passes(builder, n, found) for n in reading
            ):
                found.add(value)
    return found


def _passes(builder: Builder, node: Node, to_parts: Set[int]) -> bool:
    """Whether what a node reads may be added to its result as well, which is taken apart later."""
    if node.outputs[0] not in to_parts:
        return False
    shapes = [builder.shapes[value] for value in (*node.inputs, *node.outputs)]
    if node.primitive == "add":
        return len(set(shapes)) == 1
    keeps_last = shapes[0][-1:] == shapes[-1][-1:] and len(shapes[-1]) > 0
    return node.primitive in ("slice", "squeeze", "stack_item") and keeps_last


def _add_later(builder: Builder, node: Node, summed: int, x: int, vector: int) -> tuple[int, int]:
    """Write f(x + vector) as f(x) + vector; returns f(x) and the vector."""
    (result,) = node.outputs
    before = builder.like(result)
    inputs = tuple(x if value == summed else value for value in node.inputs)
    builder.nodes.append(dataclasses.replace(node, inputs=inputs, outputs=(before,)))
    _write_sum(builder, node, before, vector, 0, result)
    return before, vector


def _vector(builder: Builder, producers: dict[int, Node], total: Node) -> tuple[int, int] | None:
    """The two operands of a sum, if the second is a vector along the last axis, from parameters."""
    last = builder.shapes[total.outputs[0]][-1:]
    for x, added in (total.inputs, total.inputs[::-1]):
        value = before_layout(producers.get, added)
        own = builder.from_parameters[value] or value in builder.literals
        sizes = [size for size in builder.shapes[value] if size > 1]
        if own and sizes == list(last) and builder.shapes[added][-1:] == last:
            return x, value
    return None


def _along_last(builder: Builder, node: Node) -> bool:
    """Whether a node takes parts along the last axis only, one after another."""
    if node.primitive not in ("slice", "split"):
        return False
    shape = builder.shapes[node.inputs[0]]
    if node.primitive == "split":
        return node.params["axis"] == len(shape) - 1
    strides = node.params["strides"] or [1] * len(shape)
    taken = builder.shapes[node.outputs[0]]
    return strides[-1] == 1 and taken[:-1] == shape[:-1] and taken != shape


def _write_apart(builder: Builder, node: Node, x: int, vector: int) -> None:
    """Write the parts of x + vector as the parts of each."""
    parts = tuple(builder.like(v) for v in node.outputs)
    builder.nodes.append(dataclasses.replace(node, inputs=(x,), outputs=parts))
    start = node.params["start_indices"][-1] if node.primitive == "slice" else 0
    for part, result in zip(parts, node.outputs, strict=True):
        _write_sum(builder, node, part, vector, start, result)
        start += builder.shapes[result][-1]


def _write_sum(builder: Builder, node: Node, x: int, vector: int, start: int, result: int) -> None:
    """Write a sum of x and the part of a vector that begins at `start`."""
    shape, dtype = builder.shapes[result], builder.dtypes[result]

    def taken(whole: Any) -> Any:
        piece = jax.lax.slice(whole.reshape(-1), (start,), (start + shape[-1],))
        piece = jax.lax.convert_element_type(piece, dtype)
        return jax.lax.broadcast_in_dim(piece, shape, (len(shape) - 1,))

    added = _emitted(builder, node, taken, vector)
    builder.nodes.append(
        dataclasses.replace(
            node,
            primitive="add",
            params={},
            inputs=(x, added),
            outputs=(result,),
            equation=None,
        )
    )


def _emitted(builder: Builder, node: Node, function: Any, vector: int) -> int:
    """Emit what a function of one vector computes."""
    aval = jax.ShapeDtypeStruct(builder.shapes[vector], builder.dtypes[vector])  # type: ignore[no-untyped-call]
    jaxpr = jax.make_jaxpr(function)(aval).jaxpr
    values = {jaxpr.invars[0]: vector}
    for equation in jaxpr.eqns:
        operands = [values[atom] for atom in equation.invars]
        results = builder.emit(
            equation.primitive.name,
            equation.params,
            operands,
            [var.aval for var in equation.outvars],
            equation,
            node.where,
        )
        values.update(zip(equation.outvars, results, strict=True))
    return values[jaxpr.outvars[0]]
