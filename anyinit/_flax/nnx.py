"""An nnx module, traced and analysed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from anyinit._arguments import (
    Patterns,
    call_note,
    check_inputs,
    check_moment,
    not_a_model,
    selection,
)
from anyinit._findings import Reason
from anyinit._leaf_names import Leaf, named_leaves
from anyinit._plan.analysis import Analysis, examine
from anyinit._plan.plan import LeftAlone, Plan
from anyinit._trace.existing import array_of, is_constant, samples_of
from anyinit._trace.trace import Initial, Parameter, abstract, initial_samples, is_array, trace

Make = Callable[[nnx.Rngs], nnx.Module]
Method = str | Callable[..., Any]


def no_module(got: Any) -> TypeError:
    """The error for what is no nnx module and makes none."""
    expected = "an instance of flax.nnx.Module, or a function that makes one from nnx.Rngs"
    return not_a_model("nnx", expected, got)


@dataclasses.dataclass(frozen=True)
class TracedNnx:
    """A traced and analysed module, with what its graph is run on.

    Arguments:
        analysis: the analysis.
        fixed: positions of the parameters among the leaves of the state.
        random: positions of the random states.
        names: of the random states.
        arrays: the arrays among the inputs.
    """

    analysis: Analysis
    fixed: tuple[int, ...]
    random: tuple[int, ...]
    names: tuple[str, ...]
    arrays: tuple[Any, ...]

    def finished(self, plan: Plan) -> Plan:
        """The plan with every leaf of the state listed."""
        further = [LeftAlone(name, Reason.NOT_FLOAT) for name in self.names]
        return dataclasses.replace(plan, left_alone=(*plan.left_alone, *further))

    def values(self, state: Any) -> tuple[list[Any], list[Any]]:
        """The arrays of the graph's parameters, and of its other inputs."""
        leaves = [leaf.value for leaf in named_leaves(state)[0]]
        streams = [leaves[position] for position in self.random]
        return [leaves[position] for position in self.fixed], [*streams, *self.arrays]


def trace_nnx(
    model: nnx.Module | Make,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    method: Method = "__call__",
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
) -> TracedNnx:
    """Trace a module and analyse it.

    Arguments:
        model: the module, or a function that makes it.
        args: its inputs; arrays count by shape and dtype.
        kwargs: further arguments.
        method: the method to follow, by name, or a function of the module and its inputs.
        only: patterns of the weights to scale.
        skip: patterns of the weights to leave as drawn.
        input_moment: second moment of the float inputs.
    """
    check_moment(input_moment)
    leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)))
    arrays = [abstract(leaf) for leaf in leaves if is_array(leaf)]
    check_inputs(arrays)
    graph_of_module, state, kinds = _split(model)
    named, treedef = named_leaves(state)
    made = _read(named) if isinstance(model, nnx.Module) else _drawn(model)
    parameters, random = [], []
    for position, leaf in enumerate(named):
        kind = kinds[position]
        if issubclass(kind, nnx.RngState):
            random.append(position)
            continue
        collection = "params" if issubclass(kind, nnx.Param) else kind.__name__
        initial = made(position)
        parameters.append(
            Parameter(
                leaf.name,
                collection,
                tuple(leaf.value.shape),
                leaf.value.dtype,
                initial.drawn and collection == "params",
                initial.samples,
                array=initial.array,
            )
        )
    names = [p.name for p in parameters if p.drawn]
    chosen = selection(names, only, skip)
    if not names:
        raise ValueError(
            f"The model has no drawn weight: got {len(parameters)} parameters, all constant, "
            "expected at least one nnx.Param whose entries differ. There is nothing to scale."
        )
    fixed = [position for position in range(len(named)) if position not in random]

    def forward(values: Sequence[Any], given: Sequence[Any]) -> Any:
        streams, inputs = given
        merged = dict(zip(fixed, values, strict=True)) | dict(zip(random, streams, strict=True))
        module = nnx.merge(graph_of_module, treedef.unflatten(merged[i] for i in range(len(named))))
        remaining = iter(inputs)
        filled = [next(remaining) if is_array(leaf) else leaf for leaf in leaves]
        positional, keywords = jax.tree.unflatten(structure, filled)
        if callable(method):
            return method(module, *positional, **keywords)
        return getattr(module, method)(*positional, **keywords)

    shapes = [abstract(leaf.value) for leaf in named]
    streams = [shapes[position] for position in random]
    values = [shapes[position] for position in fixed]
    try:
        traced = trace(forward, parameters, values, (streams, arrays), input_moment)
    except Exception as error:
        # The module's own error, with what it was called with.
        name = type(model).__name__ if isinstance(model, nnx.Module) else "the module"
        error.add_note(call_note(name, args, arrays, "the module was drawn when it was made"))
        raise
    return TracedNnx(
        examine(traced, chosen),
        tuple(fixed),
        tuple(random),
        tuple(named[position].name for position in random),
        tuple(leaf for leaf in leaves if is_array(leaf)),
    )


def _split(model: nnx.Module | Make) -> tuple[Any, Any, list[type[nnx.Variable[Any]]]]:
    """A module's structure, its state, and what kind of variable each leaf belongs to."""
    if isinstance(model, nnx.Module):
        module = model
    elif callable(model):
        module = nnx.eval_shape(lambda: model(nnx.Rngs(0)))
        if not isinstance(module, nnx.Module):
            raise no_module(module)
    else:
        raise no_module(model)
    structure, state = nnx.split(module)
    kinds: list[type[nnx.Variable[Any]]] = []
    for _, variable in nnx.to_flat_state(state):
        kinds += [type(variable)] * len(jax.tree.leaves(variable))
    return structure, state, kinds


def _read(named: Sequence[Leaf]) -> Callable[[int], Initial]:
    """How the leaves of a module that exists are made, read off their values."""

    def made(position: int) -> Initial:
        leaf = named[position]
        if isinstance(leaf.value, (jax.core.Tracer, jax.ShapeDtypeStruct)):
            raise TypeError(
                f"{leaf.name} has no values yet: got {type(leaf.value).__name__}, expected an "
                "array. Plan the function that makes the module, "
                "anyinit.nnx.plan(lambda rngs: Model(rngs), x), and apply the plan with "
                "nnx.update(model, plan.rescale(nnx.state(model)))."
            )
        if not jax.numpy.issubdtype(leaf.value.dtype, jax.numpy.floating):
            return Initial(False, None)
        drawn = not is_constant(leaf.value)
        return Initial(drawn, samples_of(leaf.value), None if drawn else array_of(leaf.value))

    return made


def _drawn(make: Make) -> Callable[[int], Initial]:
    """How the leaves of a module that a function makes are made, read off its computation."""

    def initialize(keys: Any, _: Any) -> list[Any]:
        return jax.tree.leaves(nnx.state(make(nnx.Rngs(keys["default"]))))

    key = jax.eval_shape(lambda: jax.random.key(0))
    found = initial_samples(initialize, {"default": key}, [])
    return lambda position: found[position]
