"""From a function of parameters and inputs to a flat graph and the role of each argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._classify.classify import classify
from anyinit._classify.traits import Argument, Role, Traits
from anyinit._graph.exact import exact_value
from anyinit._graph.flatten import flatten
from anyinit._graph.graph import Graph
from anyinit._propagate.propagate import propagate
from anyinit._propagate.signal import from_array, normal_quantiles, reshuffle


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A leaf of the parameters before the analysis.

    Arguments:
        name: the framework's name.
        collection: the collection it lies in.
        shape: its shape.
        dtype: its dtype.
        drawn: whether it is random.
        samples: its numbers (constant), or samples of how it is drawn, where known.
        aliases: other names of the same storage.
        array: all numbers of a constant of one axis, where they differ.
    """

    name: str
    collection: str
    shape: tuple[int, ...]
    dtype: Any
    drawn: bool
    samples: np.ndarray | None
    aliases: tuple[str, ...] = ()
    array: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Initial:
    """How a leaf is made.

    Arguments:
        drawn: whether it is random.
        samples: its numbers (constant), or samples of how it is drawn, where known.
        array: all numbers of a constant of one axis, where they differ.
    """

    drawn: bool
    samples: np.ndarray | None
    array: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A traced model, ready for the analysis.

    Arguments:
        graph: the flattened forward pass.
        traits: what each value is.
        parameters: the leaf at each parameter input of the graph.
        signals: samples of the float inputs.
        outputs: results that are logits or signals; scalar losses are left out.
    """

    graph: Graph
    traits: Traits
    parameters: Mapping[int, Parameter]
    signals: Mapping[int, np.ndarray]
    outputs: tuple[int, ...]


def is_array(leaf: Any) -> bool:
    """Whether an argument is an array (or its shape and dtype), not a static constant."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array argument."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)  # type: ignore[no-untyped-call]


def initial_samples(initialize: Callable[..., Any], keys: Any, arrays: Any) -> list[Initial]:
    """How the leaves of an initializer's result are made.

    A leaf that depends on no random key is constant. Nothing is evaluated but the samples.
    """
    closed = jax.make_jaxpr(initialize)(keys, arrays)
    graph = flatten(closed, [False] * len(closed.jaxpr.invars))
    key_count = len(jax.tree.leaves(keys))
    arguments = {
        value: Argument(Role.NOISE if position < key_count else _role_of(graph.dtypes[value]))
        for position, value in enumerate(graph.inputs)
    }
    traits = classify(graph, arguments)
    signals = {
        value: reshuffle(normal_quantiles(), value)
        for value, argument in arguments.items()
        if argument.role is Role.SIGNAL
    }
    moving = {value for value in graph.outputs if traits[value].role >= Role.WEIGHT}
    samples = dict(traits.known)
    if moving:
        record = propagate(
            graph, traits, signals, {}, {}, {}, lambda *_: 1.0, frozenset(), frozenset(moving)
        )
        samples.update(record.samples)
    found = []
    for value in graph.outputs:
        role, numbers, array = traits[value].role, samples.get(value), None
        if role is Role.KNOWN and len(graph.shapes[value]) == 1 and numbers is not None:
            array = exact_value(graph, {}, value) if numbers.ndim else None
        if array is not None:
            numbers = from_array(array)
        found.append(Initial(role not in (Role.KNOWN, Role.OPAQUE), numbers, array))
    return found


def _role_of(dtype: Any) -> Role:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return Role.NOISE
    return Role.SIGNAL if jnp.issubdtype(dtype, jnp.inexact) else Role.OPAQUE


def trace(
    function: Callable[..., Any],
    parameters: Sequence[Parameter],
    leaves: Any,
    arrays: Any,
    input_moment: float,
) -> Model:
    """Trace ``function(leaves, arrays)`` over abstract arguments and classify its values.

    Arguments:
        function: the forward pass.
        parameters: what is known of each leaf, in order.
        leaves: abstract parameter leaves.
        arrays: abstract inputs.
        input_moment: second moment of the float inputs.
    """
    closed = jax.make_jaxpr(function)(leaves, arrays)
    count = len(parameters)
    inputs = closed.jaxpr.invars
    graph = flatten(closed, [i < count for i in range(len(inputs))])
    arguments: dict[int, Argument] = {}
    for value, parameter in zip(graph.inputs, parameters, strict=False):
        arguments[value] = _parameter_argument(graph, value, parameter)
    for value in graph.inputs[count:]:
        arguments[value] = Argument(_role_of(graph.dtypes[value]))
    scale = float(np.sqrt(input_moment))
    signals = {
        value: scale * reshuffle(normal_quantiles(), value, 1)
        for value in graph.inputs[count:]
        if arguments[value].role is Role.SIGNAL
    }
    traits = classify(graph, arguments)
    outputs = tuple(
        value
        for value in dict.fromkeys(graph.outputs)
        if traits[value].moves
        and jnp.issubdtype(graph.dtypes[value], jnp.inexact)
        and graph.size(value) > 1
    )
    table = dict(zip(graph.inputs, parameters, strict=False))
    return Model(graph, traits, table, signals, outputs)


def _parameter_argument(graph: Graph, value: int, parameter: Parameter) -> Argument:
    if parameter.drawn and jnp.issubdtype(parameter.dtype, jnp.floating):
        return Argument(Role.WEIGHT)
    if parameter.samples is None and not jnp.issubdtype(parameter.dtype, jnp.inexact):
        return Argument(Role.OPAQUE)
    samples = np.asarray(0.0) if parameter.samples is None else parameter.samples
    if samples.dtype.kind == "f":
        samples = samples.astype(np.float64)
    gain = parameter.collection == "params" and graph.size(value) > 1
    return Argument(Role.KNOWN, samples, gain, parameter.array)
