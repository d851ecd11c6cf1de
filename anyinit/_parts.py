"""A vector that is added to fused gates is added to each gate by itself.

Recurrent layers compute all gates in one product, add one bias and split the sum. The bias of one
gate may be 1 and that of the others 0: which numbers a gate sees shows only once its part of the
bias is taken apart from the rest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from anyinit._graph import Builder, Node, before_layout


def split_before_adding(builder: Builder) -> None:
    """Write every part of (x + vector) as (part of x) + (part of the vector).

    Arguments:
        builder: its nodes are replaced in place.
    """
    producers = {value: node for node in builder.nodes for value in node.outputs}
    readers: dict[int, list[Node]] = {}
    for node in builder.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    nodes, builder.nodes = builder.nodes, []
    for node in nodes:
        found = None
        if node.primitive in ("slice", "split"):
            total = producers.get(node.inputs[0])
            alone = all(n.primitive in ("slice", "split") for n in readers[node.inputs[0]])
            if total is not None and total.primitive == "add" and alone:
                found = _vector(builder, producers, total)
        if found is None or not _along_last(builder, node):
            builder.nodes.append(node)
        else:
            _write_apart(builder, node, *found)


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
    shape = builder.shapes[node.inputs[0]]
    if node.primitive == "split":
        return node.params["axis"] == len(shape) - 1
    strides = node.params["strides"] or [1] * len(shape)
    return strides[-1] == 1 and builder.shapes[node.outputs[0]][:-1] == shape[:-1]


def _write_apart(builder: Builder, node: Node, x: int, vector: int) -> None:
    parts = tuple(builder.like(v) for v in node.outputs)
    builder.nodes.append(dataclasses.replace(node, inputs=(x,), outputs=parts))
    start = node.params["start_indices"][-1] if node.primitive == "slice" else 0
    for part, result in zip(parts, node.outputs, strict=True):
        shape, dtype = builder.shapes[result], builder.dtypes[result]
        size = shape[-1]

        def taken(whole: Any, start: int = start, shape: Any = shape, dtype: Any = dtype) -> Any:
            piece = jax.lax.slice(whole.reshape(-1), (start,), (start + shape[-1],))
            piece = jax.lax.convert_element_type(piece, dtype)
            return jax.lax.broadcast_in_dim(piece, shape, (len(shape) - 1,))

        added = _emitted(builder, node, taken, vector)
        builder.nodes.append(
            dataclasses.replace(
                node,
                primitive="add",
                params={},
                inputs=(part, added),
                outputs=(result,),
                equation=None,
            )
        )
        start += size


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
