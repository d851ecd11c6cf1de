"""A linen module, traced and analysed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from anyinit._arguments import (
    Patterns,
    call_note,
    check_inputs,
    check_moment,
    not_a_model,
    selection,
)
from anyinit._leaf_names import PARAMS, Leaf, named_leaves
from anyinit._plan.analysis import Analysis, examine
from anyinit._trace.trace import Parameter, abstract, initial_samples, is_array, trace

_DEFAULT_STREAMS = ("params", "dropout")


def check_linen(model: Any) -> None:
    """Refuse what is no instance of a linen module."""
    if not isinstance(model, nn.Module):
        raise not_a_model("flax", "an instance of flax.linen.Module", model)


@dataclasses.dataclass(frozen=True)
class TracedLinen:
    """A traced and analysed model, with what its graph is run on.

    Arguments:
        analysis: the analysis.
        names: of the leaves, in the order of the graph's inputs.
        streams: of random keys.
        arrays: the arrays among the inputs.
    """

    analysis: Analysis
    names: tuple[str, ...]
    streams: tuple[str, ...]
    arrays: tuple[Any, ...]

    def values(self, variables: Any) -> tuple[list[Any], list[Any]]:
        """The arrays of the graph's parameters, and of its other inputs, with fixed keys."""
        leaves = {leaf.name: leaf.value for leaf in named_leaves(variables, self.names)[0]}
        missing = [name for name in self.names if name not in leaves]
        if missing:
            raise ValueError(
                f"The variables lack {missing[0]}, got {', '.join(list(leaves)[:5])} …: pass the "
                "whole variables of this model, its collections besides params included."
            )
        keys = [jax.random.key(number) for number in range(len(self.streams))]
        return [leaves[name] for name in self.names], [*keys, *self.arrays]


def trace_linen(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    rngs: Any = None,
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
    given: Any = None,
) -> TracedLinen:
    """Trace a module and analyse it.

    Arguments:
        model: the module.
        args: its inputs; arrays count by shape and dtype.
        kwargs: further arguments, ``method=`` and ``mutable=`` among them.
        rngs: names of its further random streams.
        only: patterns of the weights to scale.
        skip: patterns of the weights to leave as drawn.
        input_moment: second moment of the float inputs.
        given: parameters that have to be this model's.
    """
    check_linen(model)
    check_moment(input_moment)
    key = jax.eval_shape(lambda: jax.random.key(0))
    names = list(dict.fromkeys([*_DEFAULT_STREAMS, *(rngs or ())]))
    keys = dict.fromkeys(names, key)
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)))
    arrays = [abstract(leaf) for leaf in leaves if is_array(leaf)]
    check_inputs(arrays)

    def call(given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        remaining = iter(given)
        merged = [next(remaining) if is_array(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(structure, merged)

    def initialize(keys: Any, given: Sequence[Any]) -> Any:
        positional, named = call(given)
        return model.init(keys, *positional, **named)

    try:
        shapes = jax.eval_shape(initialize, keys, arrays)
    except Exception as error:
        # The model's own error, with what it was called with.
        error.add_note(call_note(type(model).__name__, args, arrays, "init does"))
        raise
    made = initial_samples(initialize, keys, arrays)
    named, treedef = named_leaves(shapes)
    if given is not None:
        _check_belongs(model, named, given)
    parameters = [
        Parameter(
            leaf.name,
            leaf.collection,
            leaf.value.shape,
            leaf.value.dtype,
            initial.drawn,
            initial.samples,
            array=initial.array,
        )
        for leaf, initial in zip(named, made, strict=True)
    ]
    chosen = selection([p.name for p in parameters if p.drawn], only, skip)
    if not any(p.drawn for p in parameters):
        raise ValueError(
            f"{type(model).__name__} has no drawn weight: got {len(parameters)} parameters, all "
            "constant, expected at least one that depends on the random key. There is nothing to "
            "scale; use model.init."
        )
    mutable = [name for name in shapes if name != "params"]

    def forward(values: Sequence[Any], given: Sequence[Any]) -> Any:
        positional, named_arguments = call(given[1])
        variables = jax.tree.unflatten(treedef, values)
        # The key of the parameters too: Flax falls back on it for streams that have no key.
        streams = given[0]
        requested = named_arguments.pop("mutable", False)
        if mutable or requested:
            named_arguments["mutable"] = requested or mutable
            output, _ = model.apply(variables, *positional, rngs=streams, **named_arguments)
            return output
        return model.apply(variables, *positional, rngs=streams, **named_arguments)

    traced = trace(
        forward, parameters, [leaf.value for leaf in named], (keys, arrays), input_moment
    )
    return TracedLinen(
        examine(traced, chosen),
        tuple(leaf.name for leaf in named),
        tuple(sorted(keys)),
        tuple(leaf for leaf in leaves if is_array(leaf)),
    )


def _check_belongs(model: nn.Module, named: Sequence[Leaf], given: Any) -> None:
    """Refuse parameters of another model."""
    expected = {leaf.name: tuple(leaf.value.shape) for leaf in named if leaf.collection == PARAMS}
    found = {
        leaf.name: tuple(jnp.shape(leaf.value))
        for leaf in named_leaves(given, list(expected))[0]
        if leaf.collection == PARAMS
    }
    wrong = [
        f"{name} is {found.get(name, 'missing')}, expected {expected.get(name, 'no such leaf')}"
        for name in dict.fromkeys([*expected, *found])
        if expected.get(name) != found.get(name)
    ]
    if wrong:
        raise ValueError(
            f"these parameters are not those of this {type(model).__name__}: "
            + "; ".join(wrong[:4])
            + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
            + ". Pass the variables that anyinit.flax.init(model, rng, x) returned for it."
        )
