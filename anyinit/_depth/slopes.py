"""The elementwise nonlinearities of a model, and how each answers to an error in its input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._classify.traits import Role
from anyinit._depth.stability import Nonlinearity
from anyinit._graph import primitives
from anyinit._graph.graph import Node
from anyinit._propagate.signal import moment
from anyinit._rules import evaluate
from anyinit._trace.trace import Model

# Relative change of the input by which slopes are taken, and change that makes two inputs unlike.
_STEP = 0.01
_ALIKE = 0.02

_PASSED = primitives.ELEMENTWISE | primitives.LAYOUT
_LINEAR = primitives.ADDITIONS | primitives.LAYOUT | {"neg"}


@dataclasses.dataclass(frozen=True)
class Function:
    """An elementwise nonlinearity of the graph.

    Arguments:
        value: the value that enters.
        nodes: the nodes that compute it, in their order.
    """

    value: int
    nodes: tuple[Node, ...]


def functions_of(model: Model) -> tuple[Function, ...]:
    """Every elementwise nonlinearity of a model, up to where its result is read.

    What norms, softmax and statistics are made of is no function of its own.
    """
    graph, traits = model.graph, model.traits
    origin: dict[int, int] = {}
    steps: dict[int, list[Node]] = {}
    for node in graph.nodes:
        moving = [v for v in node.inputs if traits[v].moves]
        origins = {origin.get(v, v) for v in moving}
        if len(origins) == 1 and node.primitive in _PASSED and node.index not in traits.absorbed:
            (root,) = origins
            if traits[root].role is Role.SIGNAL:
                origin.update(dict.fromkeys(node.outputs, root))
                steps.setdefault(root, []).append(node)
    found = (Function(root, _up_to_a_reader(model, root, nodes)) for root, nodes in steps.items())
    return tuple(each for each in found if _is_nonlinearity(model, each))


def _up_to_a_reader(model: Model, root: int, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes up to the first value that all others lead to and that something else reads."""
    consumers = model.graph.consumers
    inner = {node.index for node in nodes}
    # What reads each value and has not been passed yet; other readers of the root do not count.
    waiting = {root: inner.intersection(consumers[root])}
    for place, node in enumerate(nodes):
        for read in waiting.values():
            read.discard(node.index)
        result = node.outputs[0]
        waiting[result] = set(consumers[result])
        alone = not any(read for value, read in waiting.items() if value != result)
        # A norm's square is elementwise again; its mean is not.
        if alone and (not waiting[result] or waiting[result] - inner):
            return tuple(nodes[: place + 1])
    done = list(nodes)
    while done and _is_linear(model, done[-1]):
        done.pop()
    return () if done and _only_reduced(model, done[-1].outputs[0]) else tuple(done)


def _only_reduced(model: Model, value: int) -> bool:
    """Whether a value is read by sums and extremes alone, as a norm's square is."""
    readers = {model.graph.nodes[index].primitive for index in model.graph.consumers[value]}
    return readers <= primitives.REDUCTIONS


def _is_nonlinearity(model: Model, function: Function) -> bool:
    traits, nodes = model.traits, function.nodes
    if all(_is_linear(model, node) for node in nodes):
        return False
    result = nodes[-1].outputs[0]
    readers = {model.graph.nodes[index].primitive for index in model.graph.consumers[result]}
    in_softmax = traits[result].exp_of is not None and readers & primitives.SUMS
    entering = traits[function.value]
    if entering.reduced or in_softmax:
        return False
    whole = {node.index for node in nodes}.issuperset(model.graph.consumers[function.value])
    return whole or entering.base not in traits.normalized


def nonlinearities(
    model: Model,
    functions: Sequence[Function],
    samples: Mapping[int, np.ndarray],
    moments: Mapping[int, float],
) -> tuple[Nonlinearity, ...]:
    """Each nonlinearity with its slope; equal ones are counted.

    Arguments:
        model: the traced model.
        functions: the nonlinearities.
        samples: samples of the values that enter, up to a factor.
        moments: second moments of those of them whose factor is known.
    """
    found: list[Nonlinearity] = []
    for function in functions:
        given = samples.get(function.value)
        if given is None or not moment(given) > 0 or given.dtype.kind != "f":
            continue
        entering = moments.get(function.value) or moment(given)
        name, where = _name(model, function.nodes), function.nodes[-1].where
        for place, other in enumerate(found):
            alike = math.isclose(other.moment, entering, rel_tol=_ALIKE)
            if alike and (other.function, other.where) == (name, where):
                found[place] = dataclasses.replace(other, count=other.count + 1)
                break
        else:
            slope = _slope(model, function, math.sqrt(entering / moment(given)) * given)
            if slope is not None:
                found.append(Nonlinearity(name, where, 1, entering, slope))
    return tuple(found)


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


def _slope(model: Model, function: Function, entering: np.ndarray) -> float | None:
    low, high = (_moment_after(model, function, s * entering) for s in (1 - _STEP, 1 + _STEP))
    if not (low > 0 and high > 0 and math.isfinite(low) and math.isfinite(high)):
        return None
    return math.log(high / low) / (2 * math.log((1 + _STEP) / (1 - _STEP)))


def _moment_after(model: Model, function: Function, entering: np.ndarray) -> float:
    numbers = {function.value: entering}
    for node in function.nodes:
        inputs = [numbers[v] if v in numbers else model.traits.known[v] for v in node.inputs]
        results, _ = evaluate(model.graph, model.traits, node, inputs)
        numbers.update(zip(node.outputs, results, strict=True))
    return moment(numbers[function.nodes[-1].outputs[0]])
