"""The forward pass that gives every value its trait."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._classify.averaging import averaging_operand
from anyinit._classify.combination import absorbed_nodes, combination
from anyinit._classify.features import argument_features, features
from anyinit._classify.scaling import scaling
from anyinit._classify.traits import Argument, Chosen, Role, Trait, Traits
from anyinit._graph import primitives
from anyinit._graph.contraction import contracted_axes
from anyinit._graph.exact import exact_value
from anyinit._graph.graph import Graph, Node
from anyinit._graph.stacks import is_stack
from anyinit._propagate.signal import from_array
from anyinit._rules import evaluate

# The largest literal that is inspected for one-hot rows.
_INSPECTED = 1 << 16

_KEEPS_ROLE = primitives.LAYOUT | primitives.PICK | primitives.JOIN
_KEEPS_SILENCE = _KEEPS_ROLE | primitives.ADDITIONS | primitives.SUMS | {"neg", "div", "select_n"}


def classify(graph: Graph, arguments: Mapping[int, Argument]) -> Traits:
    """Give every value of a graph its trait.

    Arguments:
        graph: the flattened model.
        arguments: how each input value of the graph enters.
    """
    of: list[Trait | None] = [None] * len(graph.shapes)
    known: dict[int, np.ndarray] = {}
    for value, argument in arguments.items():
        sources = ((value, None),) if argument.role is Role.WEIGHT else ()
        flags = argument_features(graph.shapes[value], argument.role)
        of[value] = Trait(
            argument.role, value, value, sources=sources, gain=argument.gain, features=flags
        )
        if argument.role is Role.KNOWN:
            assert argument.samples is not None
            known[value] = argument.samples
        elif not of[value].moves:  # type: ignore[union-attr]
            known[value] = _placeholder(graph.dtypes[value])
    for value, array in graph.literals.items():
        flags = argument_features(graph.shapes[value], Role.KNOWN)
        hot = array.size <= _INSPECTED and _has_one_hot_rows(array)
        of[value] = Trait(Role.KNOWN, value, value, features=flags, one_hot=hot)
        known[value] = from_array(array)
    arrays = {v: a.array for v, a in arguments.items() if a.array is not None}
    traits = Traits(of, known)
    absorbed: set[int] = set()
    for node in graph.nodes:
        inputs = [traits[value] for value in node.inputs]
        roles = [_role(traits, graph, node, inputs, value) for value in node.outputs]
        if max(roles) < Role.WEIGHT:
            numbers = [known.get(value, _placeholder(graph.dtypes[value])) for value in node.inputs]
            results, _ = evaluate(graph, traits, node, numbers)
            known.update(zip(node.outputs, results, strict=True))
            if max(roles) is Role.KNOWN:
                _make_exact(graph, known, arrays, node)
        for value, role in zip(node.outputs, roles, strict=True):
            of[value] = _trait(traits, graph, node, inputs, role, value)
        absorbed |= absorbed_nodes(traits, graph, node)
    normalized = {trait.normalizes for trait in of if trait is not None} - {None}
    return dataclasses.replace(
        traits,
        absorbed=frozenset(absorbed),
        normalized=frozenset(base for base in normalized if base is not None),
    )


def _make_exact(
    graph: Graph, known: dict[int, np.ndarray], arrays: Mapping[int, np.ndarray], node: Node
) -> None:
    """Evaluate what is picked out of a known array, or a number that is summed over it."""
    uneven = any(known[value].ndim > 0 for value in node.inputs)
    part = node.primitive in ("slice", "split") and len(graph.shapes[node.inputs[0]]) == 1
    for value in node.outputs:
        if uneven and (part or graph.size(value) == 1):
            exact = exact_value(graph, arrays, value)
            if exact is not None:
                known[value] = from_array(exact)


def _placeholder(dtype: Any) -> np.ndarray:
    """Integers of the input are never looked at: each counts as the number one."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return np.asarray(0)
    return np.asarray(1.0 if jnp.issubdtype(dtype, np.inexact) else 1).astype(
        np.float64 if jnp.issubdtype(dtype, np.inexact) else dtype
    )


def _role(traits: Traits, graph: Graph, node: Node, inputs: Sequence[Trait], value: int) -> Role:
    name = node.primitive
    if name in primitives.RANDOM:
        return Role.NOISE
    role = max((trait.role for trait in inputs), default=Role.KNOWN)
    if role is Role.SIGNAL:
        # Integers made from a signal (argmax, buckets, quantized values) are indices.
        dtype = graph.dtypes[value]
        number = jnp.issubdtype(dtype, np.inexact) or jnp.issubdtype(dtype, np.bool_)
        return role if number else Role.OPAQUE
    if role < Role.WEIGHT:
        return role
    still = [trait for trait in inputs if not trait.moves]
    if name in primitives.CONTRACTIONS:
        roles = {trait.role for trait in inputs}
        return Role.SIGNAL if still or roles == {Role.WEIGHT, Role.DERIVED} else role
    if name == "gather":
        return Role.WEIGHT if _picks_kernels(graph, node, inputs[0]) else Role.SIGNAL
    if name in _KEEPS_ROLE or name in ("neg", "select_n"):
        return role
    if name in ("mul", "div") and len(still) == 1 and (name == "mul" or inputs[0].moves):
        return role
    if name in primitives.ADDITIONS and _adds_zero(traits, node):
        return role
    return Role.DERIVED


def _picks_kernels(graph: Graph, node: Node, operand: Trait) -> bool:
    """Whether whole matrices are picked out of a drawn stack, to be multiplied with a signal.

    An expert's kernel that is taken by index stays a kernel; a row of a table becomes a signal.
    """
    if operand.role is not Role.WEIGHT:
        return False
    numbers = node.params["dimension_numbers"]
    shape = graph.shapes[node.outputs[0]]
    if sum(shape[axis] > 1 for axis in numbers.offset_dims) < 2:
        return False
    pending, contractions = [node.outputs[0]], 0
    while pending:
        value = pending.pop()
        for reader in (graph.nodes[index] for index in graph.consumers[value]):
            if reader.primitive in primitives.LAYOUT:
                pending.append(reader.outputs[0])
                continue
            axes = contracted_axes(reader, reader.inputs.index(value))
            if reader.primitive not in primitives.CONTRACTIONS or axes == ():
                return False
            contractions += 1
    return contractions > 0


def _adds_zero(traits: Traits, node: Node) -> bool:
    """Whether every operand of an addition is drawn or a known zero."""
    return all(traits[value].moves or traits.constant(value) == 0 for value in node.inputs)


def _trait(
    traits: Traits, graph: Graph, node: Node, inputs: Sequence[Trait], role: Role, value: int
) -> Trait:
    name = node.primitive
    sources = tuple(dict.fromkeys(source for trait in inputs for source in trait.sources))
    if name == "stack_item" and is_stack(graph, node.inputs[0]):
        count = graph.shapes[node.inputs[0]][0]
        sources = tuple(
            # An item of an item (a scan within a scan) is counted through.
            (leaf, node.params["item"] + (0 if outer is None else outer * count))
            for leaf, outer in sources
        )
    trait = Trait(
        role,
        origin=value,
        base=value,
        sources=sources if role in (Role.WEIGHT, Role.DERIVED) else (),
        power=_power(node, inputs),
        at_most=any(operand.at_most for operand in inputs) or _averaged(traits, graph, node),
        is_zero=_is_zero(traits, node),
        gain=role is Role.KNOWN and any(operand.gain for operand in inputs),
        one_hot=_one_hot(traits, graph, node, inputs),
        features=features(graph, node, inputs, value),
    )
    if role is Role.OPAQUE:
        trait = dataclasses.replace(trait, chosen=_chosen(graph, node, inputs))
    if not trait.moves:
        if name in primitives.LAYOUT and inputs:
            return dataclasses.replace(trait, origin=inputs[0].origin)
        return trait
    trait = scaling(traits, node, trait)
    return combination(traits, graph, node, trait)


def _power(node: Node, inputs: Sequence[Trait]) -> int:
    """How often the scale of the weights enters a value that is made of weights."""
    powers = [trait.power for trait in inputs if trait.role is Role.WEIGHT] or [1]
    return sum(powers) if node.primitive in primitives.CONTRACTIONS else max(powers)


def _averaged(traits: Traits, graph: Graph, node: Node) -> bool:
    """Whether a node averages a signal: its second moment is then known from above only."""
    averaging = averaging_operand(traits, node)
    return node.primitive == "average" or averaging is not None


def _one_hot(traits: Traits, graph: Graph, node: Node, inputs: Sequence[Trait]) -> bool:
    """Whether rows are one-hot: indices compared with a known array of positions."""
    if node.primitive == "eq":
        if all(trait.role is Role.KNOWN for trait in inputs):
            return _has_one_hot_rows(exact_value(graph, {}, node.outputs[0]))
        indices = any(trait.role in (Role.OPAQUE, Role.NOISE) for trait in inputs)
        positions = any(
            trait.role is Role.KNOWN and traits.known[value].ndim > 0
            for value, trait in zip(node.inputs, inputs, strict=True)
        )
        return indices and positions
    if node.primitive == "select_n" and not any(trait.moves for trait in inputs):
        # where(one_hot, 1, 0), not a mask on a signal; or some rows left out: where(…, one_hot, 0)
        cases = list(zip(node.inputs[1:], inputs[1:], strict=True))
        rows = [trait.one_hot for value, trait in cases if traits.constant(value) != 0]
        return inputs[0].one_hot or (bool(rows) and all(rows))
    if node.primitive in primitives.LAYOUT and inputs:
        return inputs[0].one_hot
    return False


def _has_one_hot_rows(array: np.ndarray | None) -> bool:
    """Whether every row of a known array of several rows has a single one, and zeros."""
    if array is None or array.ndim < 2 or array.shape[-1] < 2:
        return False
    numbers = np.asarray(array, np.float64)
    return bool(((numbers == 0) | (numbers == 1)).all() and (numbers.sum(axis=-1) == 1).all())


def _chosen(graph: Graph, node: Node, inputs: Sequence[Trait]) -> Chosen | None:
    """How indices were chosen by argmax or top_k; arithmetic on indices leaves it as it is."""
    if node.primitive in ("argmax", "argmin"):
        count = np.prod([graph.shapes[node.inputs[0]][axis] for axis in node.params["axes"]])
        return Chosen(inputs[0].origin, int(count), 1, node.primitive == "argmax")
    if node.primitive == "top_k":
        count, kept = (graph.shapes[value][-1] for value in (node.inputs[0], node.outputs[0]))
        return Chosen(inputs[0].origin, count, kept, largest=True)
    return next((trait.chosen for trait in inputs if trait.chosen is not None), None)


def _is_zero(traits: Traits, node: Node) -> bool:
    """Whether a value is zero because a constant parameter is zero."""

    def zero(value: int) -> bool:
        return traits[value].is_zero or traits.constant(value) == 0

    if node.primitive in primitives.CONTRACTIONS | {"mul"}:
        return any(zero(value) for value in node.inputs)
    if not any(traits[value].moves for value in node.inputs):
        return False
    if node.primitive == "select_n":
        return all(zero(value) for value in node.inputs[1:])
    if node.primitive in primitives.PICK | {"div"}:
        return zero(node.inputs[0])
    return node.primitive in _KEEPS_SILENCE and all(zero(value) for value in node.inputs)
