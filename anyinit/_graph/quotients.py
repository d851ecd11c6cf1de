"""Weighted averages that are divided last: Σ w·v / Σ w, however the two sums are accumulated.

A softmax divides its weights first; linear attention, attention in blocks with a running maximum
and pooling by learned weights divide at the end. What they have in common: the numerator is the
denominator with something multiplied in. That something is what is averaged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set

import jax.numpy as jnp
import numpy as np

from anyinit._graph.graph import Builder, Node, before_layout

# f(Σ x) = Σ f(x): what may act alike on both sums.
_LINEAR = frozenset("cumsum reduce_sum reduce_window_sum stack_item slice rev neg".split())


@dataclasses.dataclass(frozen=True)
class _Match:
    """A numerator as its denominator with something multiplied in.

    Arguments:
        weights: what weighs.
        averaged: what is averaged.
        inside: values of the numerator that the denominator does not have.
    """

    weights: tuple[int, ...] = ()
    averaged: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()

    def __and__(self, other: _Match) -> _Match:
        return _Match(
            self.weights + other.weights,
            self.averaged + other.averaged,
            self.inside + other.inside,
        )


@dataclasses.dataclass(frozen=True)
class _Context:
    builder: Builder
    producers: Mapping[int, Node]
    computed: Set[int]
    seen: dict[tuple[int, int], _Match | None]


def find_averages(builder: Builder, inputs: Set[int]) -> None:
    """Write every quotient that is a weighted average as one node, ``average``.

    Its operands are the numerator, the denominator (or its reciprocal), the weights and what is
    averaged; its value stays the quotient (or product) of the first two.

    Arguments:
        builder: its nodes are replaced in place.
        inputs: values of the function's arguments.
    """
    computed = {value for value in inputs if jnp.issubdtype(builder.dtypes[value], jnp.inexact)}
    for node in builder.nodes:
        if not computed.isdisjoint(node.inputs):
            computed.update(node.outputs)
    producers = {value: node for node in builder.nodes for value in node.outputs}
    context = _Context(builder, producers, computed, {})
    for position, node in enumerate(builder.nodes):
        quotient = _quotient(context, node)
        if quotient is None:
            continue
        top, bottom, operand = quotient
        match = _match(context, top, bottom)
        if match is None or not match.averaged:
            continue
        weights = match.weights[0]
        sums = np.prod(builder.shapes[_plain(context, bottom)], dtype=np.int64)
        builder.nodes[position] = dataclasses.replace(
            node,
            primitive="average",
            params={
                "inside": match.inside,
                "divides": node.primitive == "div",
                "count": max(np.prod(builder.shapes[weights], dtype=np.int64) / sums, 1.0),
            },
            inputs=(top, operand, weights, *dict.fromkeys(match.averaged)),
            equation=None,
        )


def _quotient(context: _Context, node: Node) -> tuple[int, int, int] | None:
    """Numerator and denominator of a division, and what the numerator meets there.

    In a product with a reciprocal that is the reciprocal.
    """
    if node.primitive == "div":
        return node.inputs[0], node.inputs[1], node.inputs[1]
    if node.primitive == "mul":
        for other, value in (node.inputs, node.inputs[::-1]):
            made = context.producers.get(_plain(context, value))
            if made is None:
                continue
            if made.primitive == "integer_pow" and made.params["y"] == -1:
                return other, made.inputs[0], value
            if made.primitive == "div" and _number(context, made.inputs[0]) == 1:
                return other, made.inputs[1], value
    return None


def _match(context: _Context, top: int, bottom: int) -> _Match | None:
    """How ``top`` is ``bottom`` with something multiplied in; ``None`` where it is not."""
    top, bottom = _plain(context, top), _plain(context, bottom)
    if top == bottom:
        return _Match()
    key = (top, bottom)
    if key not in context.seen:
        context.seen[key] = None
        found = _compared(context, top, bottom)
        context.seen[key] = None if found is None else _Match(inside=(top,)) & found
    return context.seen[key]


def _compared(context: _Context, top: int, bottom: int) -> _Match | None:
    above, below = context.producers.get(top), context.producers.get(bottom)
    if above is None or below is None:
        if _number(context, top) is not None and _equal(context, top, bottom):
            return _Match()
        return None if above is None else _multiplied(context, above, bottom)
    multiplied = _multiplied(context, above, bottom)
    if multiplied is not None:
        return multiplied
    if below.primitive in ("add", "max", "clamp") and below.primitive != above.primitive:
        # A small number that keeps the denominator from zero.
        sums = [v for v in below.inputs if _number(context, v) is None]
        return _match(context, top, sums[0]) if len(sums) == 1 else None
    if above.primitive == "dot_general" and below.primitive == "reduce_sum":
        return _weighed(context, above, below)
    if above.primitive != below.primitive:
        return None
    if above.primitive in _LINEAR:
        return _match(context, above.inputs[0], below.inputs[0])
    if above.primitive in ("add", "add_any"):
        return _both(context, above, below)
    if above.primitive in ("mul", "div", "dot_general"):
        return _one_alike(context, above, below)
    return None


def _multiplied(context: _Context, above: Node, bottom: int) -> _Match | None:
    """``bottom`` times something, element by element or as an outer product."""
    outer = above.primitive == "dot_general" and not above.params["dimension_numbers"][0][0]
    if above.primitive != "mul" and not outer:
        return None
    for weights, averaged in (above.inputs, above.inputs[::-1]):
        if _plain(context, weights) == bottom:
            return _leaf(context, weights, averaged)
    return None


def _weighed(context: _Context, above: Node, below: Node) -> _Match | None:
    """Σ w·v as a contraction, over Σ w."""
    (contracted, _) = above.params["dimension_numbers"]
    summed = context.builder.shapes[below.inputs[0]]
    count = np.prod([summed[axis] for axis in below.params["axes"]])
    for weights, averaged, axes in zip(above.inputs, above.inputs[::-1], contracted, strict=True):
        sizes = [context.builder.shapes[weights][axis] for axis in axes]
        same = _plain(context, weights) == _plain(context, below.inputs[0])
        if same and np.prod(sizes) == count:
            return _leaf(context, weights, averaged)
    return None


def _leaf(context: _Context, weights: int, averaged: int) -> _Match | None:
    """Weights made from tokens alone are a mask, and what a parameter is weighed with a lookup."""
    signals = {weights, averaged} <= context.computed
    if not signals or any(context.builder.from_parameters[v] for v in (weights, averaged)):
        return None
    return _Match((weights,), (averaged,))


def _both(context: _Context, above: Node, below: Node) -> _Match | None:
    """Two running sums: both terms match, in one order or the other."""
    for order in (below.inputs, below.inputs[::-1]):
        parts = [_match(context, *pair) for pair in zip(above.inputs, order, strict=True)]
        if parts[0] is not None and parts[1] is not None:
            return parts[0] & parts[1]
    return None


def _one_alike(context: _Context, above: Node, below: Node) -> _Match | None:
    """The same factor on both sides: a correction of a running sum, a query."""
    sides = (above.inputs, above.inputs[::-1]) if above.primitive != "div" else (above.inputs,)
    for value, factor in sides:
        others = (below.inputs, below.inputs[::-1]) if above.primitive != "div" else (below.inputs,)
        for other, same in others:
            if _equal(context, factor, same):
                found = _match(context, value, other)
                if found is not None:
                    return found
    return None


def _equal(context: _Context, one: int, other: int) -> bool:
    if _plain(context, one) == _plain(context, other):
        return True
    number = _number(context, one)
    return number is not None and number == _number(context, other)


def _plain(context: _Context, value: int) -> int:
    return before_layout(context.producers.get, value)


def _number(context: _Context, value: int) -> float | None:
    """The number that a literal is everywhere."""
    literal = context.builder.literals.get(_plain(context, value))
    if literal is None or not literal.size or literal.dtype.kind not in "fiu":
        return None
    first = literal.flat[0]
    return float(first) if literal.size == 1 or bool((literal == first).all()) else None
