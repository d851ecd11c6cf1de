"""Spellings of one operation, brought to one form before anything is read off the graph.

A product summed over axes along which both sides vary is a contraction, a sum over stacked values
is an addition, a contraction with a scalar is a multiplication, and what is scattered into zeros
is a sum over what is sent to one place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set

import jax.numpy as jnp
import numpy as np

from anyinit._graph import primitives
from anyinit._graph.graph import Builder, Node, before_layout, hidden_inputs, renamed


@dataclasses.dataclass(frozen=True)
class _Context:
    """What a spelling is recognized by.

    Arguments:
        builder: holds shapes and dtypes, and collects the new nodes.
        producers: the node that writes each value.
        readers: how often each value is read; results of the function count as read twice.
        computed: values that depend on a float argument: a weight or a signal.
        weights: values that depend on parameters alone.
        dependent: values that depend on any argument.
    """

    builder: Builder
    producers: Mapping[int, Node]
    readers: Mapping[int, int]
    computed: Set[int]
    weights: Set[int]
    dependent: Set[int]


def rewrite(builder: Builder, inputs: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """Replace nodes of a builder by their plainest spelling.

    Arguments:
        builder: changed in place. Nodes that nothing reads any longer are left for the removal
            of dead code.
        inputs: values of the function's arguments.
        outputs: values of the function's results.

    Returns:
        the values of the results afterwards.
    """
    outputs = _once(builder, outputs)
    readers: dict[int, int] = dict.fromkeys(outputs, 2)
    floats = {v for v in inputs if jnp.issubdtype(builder.dtypes[v], jnp.inexact)}
    weights = {value for value, is_weight in enumerate(builder.from_parameters) if is_weight}
    dependent = set(inputs)
    for node in builder.nodes:
        for value in node.inputs:
            readers[value] = readers.get(value, 0) + 1
        if floats.intersection(node.inputs):
            floats.update(node.outputs)
        if dependent.intersection(node.inputs):
            dependent.update(node.outputs)
    nodes, builder.nodes = builder.nodes, []
    producers = {value: node for node in nodes for value in node.outputs}
    context = _Context(builder, producers, readers, floats, weights, dependent)
    for node in nodes:
        if node.primitive == "reduce_sum":
            _sum(context, node)
        elif node.primitive == "scatter-add":
            _scatter(context, node)
        elif node.primitive == "dot_general" and any(builder.shapes[v] == () for v in node.inputs):
            _replace(context, node, "mul", node.inputs)
        else:
            builder.nodes.append(node)
    return list(outputs)


def _once(builder: Builder, outputs: Sequence[int]) -> list[int]:
    """Compute every sum, index and lookup once.

    A stream kept as a list is summed anew for each of its readers, and a table that is called
    twice on the same tokens looks them up twice.
    """
    same: dict[int, int] = {}
    seen: dict[tuple[object, ...], int] = {}
    nodes = []
    for node in builder.nodes:
        node = renamed(node, same)
        if node.primitive in primitives.ADDITIONS:
            params: object = None
        elif node.primitive == "gather" or _is_index(builder, node):
            params = repr(sorted(node.params.items(), key=str))
        else:
            nodes.append(node)
            continue
        key = (
            node.primitive,
            params,
            node.last_step,
            *(_literal_or_value(builder, v) for v in node.inputs),
        )
        earlier = seen.setdefault(key, node.outputs[0])
        if earlier == node.outputs[0]:
            nodes.append(node)
        else:
            same[node.outputs[0]] = earlier
    builder.nodes = nodes
    return [same.get(value, value) for value in outputs]


def _is_index(builder: Builder, node: Node) -> bool:
    """Whether a node computes one array of integers from integers alone."""
    exact = (jnp.integer, jnp.bool_)
    dtypes = [builder.dtypes[value] for value in (*node.inputs, *node.outputs)]
    integers = all(any(jnp.issubdtype(dtype, kind) for kind in exact) for dtype in dtypes)
    return integers and len(node.outputs) == 1 and not hidden_inputs(node)


def _literal_or_value(builder: Builder, value: int) -> object:
    literal = builder.literals.get(value)
    return ("number", literal.item()) if literal is not None and literal.ndim == 0 else value


def _replace(
    context: _Context, node: Node, primitive: str, inputs: Sequence[int], **params: object
) -> None:
    """A node of this package that writes what another node wrote."""
    context.builder.nodes.append(
        dataclasses.replace(
            node, primitive=primitive, params=params, inputs=tuple(inputs), equation=None
        )
    )


def _scatter(context: _Context, node: Node) -> None:
    """An indexed sum into zeros, and what it is added to where it reaches every place."""
    builder = context.builder
    whole, indices, part = node.inputs
    count = math.prod(builder.shapes[part]) / max(math.prod(builder.shapes[whole]), 1)
    filled = _is_zero(context, whole)
    if not filled and count < 1:
        builder.nodes.append(node)
        return
    primitive = "segment_sum" if count > 1 else "place"
    total = node.outputs[0]
    if not filled:
        total = builder.like(node.outputs[0])
    builder.nodes.append(
        dataclasses.replace(node, primitive=primitive, inputs=(part, indices), outputs=(total,))
    )
    if not filled:
        _replace(context, node, "add", (whole, total))


def _is_zero(context: _Context, value: int) -> bool:
    """Whether a value is a literal zero, up to its shape."""
    literal = context.builder.literals.get(before_layout(context.producers.get, value))
    return literal is not None and literal.dtype.kind in "fiub" and not np.any(literal)


def _sum(context: _Context, node: Node) -> None:
    source = context.producers.get(node.inputs[0])
    while (
        source is not None
        and source.primitive in primitives.IDENTITY
        and context.readers[source.outputs[0]] == 1
    ):
        source = context.producers.get(source.inputs[0])
    axes = tuple(node.params["axes"])
    if source is None or context.readers[source.outputs[0]] > 1:
        context.builder.nodes.append(node)
    elif source.primitive == "mul" and _contracts(context, source, axes):
        shape = context.builder.shapes[source.outputs[0]]
        _replace(context, node, "contract", source.inputs, axes=axes, shape=shape)
    elif _stacks(context, source, axes):
        _add(context, node, source.inputs)
    else:
        context.builder.nodes.append(node)


def _contracts(context: _Context, product: Node, axes: tuple[int, ...]) -> bool:
    """Whether two weights or signals, or a weight and indices, are paired and then summed.

    A mask that is made from integers weighs a signal: that is a sum, not a contraction.
    """
    left, right = product.inputs
    known = not {left, right} <= context.dependent
    weighed = not {left, right} <= context.computed and not {left, right} & context.weights
    if left == right or known or weighed:
        return False
    return any(_varies(context, left, axis) and _varies(context, right, axis) for axis in axes)


def _varies(context: _Context, value: int, axis: int) -> bool:
    """Whether a factor of an elementwise product differs along an axis of the product."""
    while True:
        shape = context.builder.shapes[value]
        if not shape or shape[axis] == 1:
            return False
        node = context.producers.get(value)
        if node is None or node.primitive not in primitives.IDENTITY | {"broadcast_in_dim"}:
            return True
        if node.primitive == "broadcast_in_dim":
            dimensions = list(node.params["broadcast_dimensions"])
            if axis not in dimensions:
                return False
            axis = dimensions.index(axis)
        value = node.inputs[0]


def _stacks(context: _Context, join: Node, axes: tuple[int, ...]) -> bool:
    """Whether values of one shape are joined along an axis of their own, and summed over it."""
    if join.primitive == "stack":
        return axes == (join.params.get("axis", 0),)
    if join.primitive != "concatenate":
        return False
    axis = join.params["dimension"]
    return axes == (axis,) and all(context.builder.shapes[v][axis] == 1 for v in join.inputs)


def _add(context: _Context, node: Node, parts: Sequence[int]) -> None:
    """The sum of a stack, term by term."""
    builder = context.builder

    def emitted(primitive: str, inputs: Sequence[int]) -> int:
        value = builder.like(node.outputs[0])
        builder.nodes.append(
            dataclasses.replace(
                node,
                primitive=primitive,
                params={},
                inputs=tuple(inputs),
                outputs=(value,),
                equation=None,
            )
        )
        return value

    total, *terms = [emitted("reshape", [part]) for part in parts]
    for term in terms[:-1]:
        total = emitted("add", [total, term])
    _replace(context, node, "add" if terms else "copy", [total, *terms[-1:]])
