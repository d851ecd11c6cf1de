"""The elementwise nonlinearities of a model, and how each answers to an error in its input."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit import _primitives as primitives
from anyinit._events import Acts
from anyinit._graph import Node
from anyinit._rules import evaluate
from anyinit._signal import moment, normal_atom
from anyinit._sites import Site
from anyinit._stability import Nonlinearity
from anyinit._trace import Model

# Relative change of the input by which slopes are taken, and change that makes two inputs unlike.
_STEP = 0.01
_ALIKE = 0.02

_PASSED = primitives.ELEMENTWISE | primitives.IDENTITY | primitives.SHAPE
_LINEAR = primitives.ADDITIONS | primitives.IDENTITY | primitives.SHAPE | {"neg"}

Functions = Mapping[int, Sequence[Node]]


def functions_of(model: Model, sites: Sequence[Site]) -> Functions:
    """The nodes of the elementwise nonlinearity that acts on each site's value, where one does.

    Arguments:
        model: the traced model.
        sites: the sites of its weights.
    """
    found: dict[int, Sequence[Node]] = {}
    for site in sites:
        if site.value in found:
            continue
        nodes = _function(model, site.value)
        readers = model.graph.consumers[site.value]
        # A norm squares what it reads, which makes no function of it.
        whole = {node.index for node in nodes}.issuperset(readers)
        bent = any(not _is_linear(model, node) for node in nodes)
        found[site.value] = nodes if bent and (whole or site.acts is not Acts.NORMALIZATION) else ()
    return {value: nodes for value, nodes in found.items() if nodes}


def nonlinearities(
    model: Model, functions: Functions, moments: Mapping[int, float]
) -> tuple[Nonlinearity, ...]:
    """Each nonlinearity with its slope; equal ones are counted.

    Arguments:
        model: the traced model.
        functions: the nodes of each, by the value that enters.
        moments: second moments of the values that enter.
    """
    found: list[Nonlinearity] = []
    for value, nodes in functions.items():
        entering = moments.get(value, 0.0)
        if entering <= 0:
            continue
        name, where = _name(model, nodes), nodes[-1].where
        for place, other in enumerate(found):
            alike = math.isclose(other.moment, entering, rel_tol=_ALIKE)
            if alike and (other.function, other.where) == (name, where):
                found[place] = dataclasses.replace(other, count=other.count + 1)
                break
        else:
            slope = _slope(model, nodes, value, entering)
            if slope is not None:
                found.append(Nonlinearity(name, where, 1, entering, slope))
    return tuple(found)


def _function(model: Model, value: int) -> Sequence[Node]:
    """The nodes that compute an elementwise function of one value, up to where it is read."""
    graph, traits = model.graph, model.traits
    inside, nodes, pending = {value}, {}, list(graph.consumers[value])
    while pending:
        index = heapq.heappop(pending)
        node = graph.nodes[index]
        moving = [v for v in node.inputs if traits[v].moves]
        if index in nodes or node.primitive not in _PASSED or not inside.issuperset(moving):
            continue
        nodes[index] = node
        for output in node.outputs:
            inside.add(output)
            for consumer in graph.consumers[output]:
                heapq.heappush(pending, consumer)
    done: list[Node] = []
    waiting = {value: len(nodes.keys() & set(graph.consumers[value]))}
    for node in nodes.values():
        done.append(node)
        for read in set(node.inputs) & waiting.keys():
            waiting[read] -= 1
        result = node.outputs[0]
        waiting[result] = len(nodes.keys() & set(graph.consumers[result]))
        # What all that came before has led to: the function ends where something else reads it,
        # as a norm does whose square is elementwise again.
        alone = all(count == 0 for v, count in waiting.items() if v != result)
        if alone and waiting[result] < len(graph.consumers[result]):
            break
    return done


def _is_linear(model: Model, node: Node) -> bool:
    """Whether a node is linear in what moves."""
    moving = [v for v in node.inputs if model.traits[v].moves]
    if node.primitive in _LINEAR:
        return True
    if node.primitive == "select_n":
        return node.inputs[0] not in moving
    alone = len(moving) == 1 and node.inputs.count(moving[0]) == 1
    return alone and (
        node.primitive == "mul" or (node.primitive, moving[0]) == ("div", node.inputs[0])
    )


def _name(model: Model, nodes: Sequence[Node]) -> str:
    """The primitives that bend the function, in their order."""
    return " ".join(dict.fromkeys(n.primitive for n in nodes if not _is_linear(model, n)))


def _slope(model: Model, nodes: Sequence[Node], value: int, entering: float) -> float | None:
    z = math.sqrt(entering) * normal_atom(value)
    low, high = (_moment_after(model, nodes, value, s * z) for s in (1 - _STEP, 1 + _STEP))
    if not (low > 0 and high > 0 and math.isfinite(low) and math.isfinite(high)):
        return None
    return math.log(high / low) / (2 * math.log((1 + _STEP) / (1 - _STEP)))


def _moment_after(model: Model, nodes: Sequence[Node], value: int, samples: np.ndarray) -> float:
    numbers = {value: samples}
    for node in nodes:
        inputs = [numbers[v] if v in numbers else model.traits.known[v] for v in node.inputs]
        results, _ = evaluate(model.graph, model.traits, node, inputs)
        numbers.update(zip(node.outputs, results, strict=True))
    return moment(numbers[nodes[-1].outputs[0]])
