"""anyinit for Flax nnx: ``init`` scales a module's weights in place; ``plan`` and ``measure``."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import linen, nnx

from anyinit._analysis import Analysis, examine
from anyinit._arguments import (
    call_note,
    check_batch,
    check_inputs,
    check_mode,
    check_moment,
    selection,
)
from anyinit._check import Check
from anyinit._empirical import measured_plan
from anyinit._existing import array_of, is_constant, samples_of
from anyinit._findings import Reason
from anyinit._leaf_names import Leaf, named_leaves
from anyinit._match import check_parameters
from anyinit._measure import measured_check
from anyinit._plan import LeftAlone, Plan
from anyinit._trace import Initial, Parameter, abstract, initial_samples, is_array, trace

Make = Callable[[nnx.Rngs], nnx.Module]
Patterns = str | Sequence[str] | None


def init(
    model: nnx.Module,
    *args: Any,
    mode: str = "analytic",
    method: str | Callable[..., Any] = "__call__",
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Scale the weights of an nnx module in place, as its computation asks for.

    >>> import jax.numpy as jnp
    >>> model = nnx.Linear(128, 256, rngs=nnx.Rngs(0))
    >>> plan = init(model, jnp.zeros((4, 128)))
    >>> plan.weights[0].path
    'kernel'

    A weight whose entries are all equal is constant and keeps its values; every other parameter
    counts as drawn, and is multiplied by one positive number.

    Arguments:
        model: the module. Inside ``jax.jit`` its values are not known yet: make the plan before,
            from the function that makes the module, and apply it with ``plan.rescale``.
        *args: the module's inputs. Arrays count by shape and dtype only, unless they are measured
            on; anything else is static.
        mode: ``"analytic"``, or ``"empirical"`` to measure on the inputs, which are then a real
            batch: every weight is corrected by what it delivers there.
        method: the method to follow, by name, or a function of the module and its inputs.
        only: path patterns (``*`` matches anything); only matching weights are scaled.
        skip: path patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the module.

    Returns:
        The plan.

    Raises:
        TypeError: the model is no nnx module, or has no values.
        ValueError: if the mode is unknown, a pattern matches nothing, an input has no elements,
            or the model has no drawn weight.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    check_mode(mode)
    if not isinstance(model, nnx.Module):
        raise _no_module(model)
    traced = _traced(model, args, kwargs, method, only, skip, input_moment)
    state = nnx.state(model)
    made = traced.finished(traced.analysis.plan)
    if mode == "empirical":
        check_batch(traced.arrays)
        measured = measured_plan(traced.analysis, *traced.values(made.rescale(state)))
        made = traced.finished(measured)
    nnx.update(model, made.rescale(state))
    return made


def plan(
    model: nnx.Module | Make,
    *args: Any,
    method: str | Callable[..., Any] = "__call__",
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Analyse an nnx module, or from shapes alone the one that a function makes.

    >>> x = jax.ShapeDtypeStruct((4, 128), jax.numpy.float32)
    >>> made = plan(lambda rngs: nnx.Linear(128, 256, rngs=rngs), x)
    >>> round(made.weights[0].sigma * 128**0.5, 3)
    1.0

    Arguments:
        model: the module, or a function (or class) that makes it from ``nnx.Rngs``; nothing is
            allocated for the latter.
        *args: the module's inputs: arrays or ``jax.ShapeDtypeStruct``.
        method: the method to follow, by name, or a function of the module and its inputs.
        only: path patterns of the weights to scale.
        skip: path patterns of the weights to leave as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the module.

    Returns:
        The plan. Apply it with ``nnx.update(model, plan.rescale(nnx.state(model)))``.

    Raises:
        TypeError: the model is no nnx module and makes none, or has no values.
        ValueError: if a pattern matches nothing, an input has no elements, or the model has no
            drawn weight.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    traced = _traced(model, args, kwargs, method, only, skip, input_moment)
    return traced.finished(traced.analysis.plan)


def measure(
    model: nnx.Module,
    *args: Any,
    plan: Plan | None = None,
    method: str | Callable[..., Any] = "__call__",
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Check:
    """Run a module on a batch, and compare what it computes with what its plan predicts.

    >>> x = jax.random.normal(jax.random.key(1), (64, 128))
    >>> model = nnx.Linear(128, 256, rngs=nnx.Rngs(0))
    >>> plan = init(model, x)
    >>> measure(model, x, plan=plan).assert_healthy(tolerance=0.1)

    Arguments:
        model: the module; nothing of it is changed.
        *args: the module's inputs: a real batch.
        plan: the plan to compare with; by default the module's analytic plan.
        method: the method to follow, by name, or a function of the module and its inputs.
        input_moment: second moment E[x²] that the plan counts on for the float inputs.
        **kwargs: further arguments of the module.

    Returns:
        A row for each site, output and residual stream: predicted and measured second moment, the
        sampling error of the measurement, and a verdict.

    Raises:
        ValueError: the plan is of another module, or nothing can be measured on the batch.
        TypeError: an input or a parameter has no values.
    """
    if not isinstance(model, nnx.Module):
        raise _no_module(model)
    state = nnx.state(model)
    only = None
    if plan is not None:
        check_parameters(plan, named_leaves(state, plan.known_names)[0])
        only = [glob.escape(row.path) for row in plan.weights]
    traced = _traced(model, args, kwargs, method, only, None, input_moment)
    check_batch(traced.arrays)
    return measured_check(traced.analysis, plan or traced.analysis.plan, *traced.values(state))


@dataclasses.dataclass(frozen=True)
class _Traced:
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


def _traced(
    model: nnx.Module | Make,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    method: str | Callable[..., Any],
    only: Patterns,
    skip: Patterns,
    input_moment: float,
) -> _Traced:
    """Trace a module and analyse it."""
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
    return _Traced(
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
            raise _no_module(module)
    else:
        raise _no_module(model)
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


def _no_module(got: Any) -> TypeError:
    name = got.__name__ if isinstance(got, type) else type(got).__name__
    return TypeError(
        f"Expected an instance of flax.nnx.Module, or a function that makes one from nnx.Rngs, "
        f"got {name}"
        + (" itself, a class: create an instance first." if isinstance(got, type) else ".")
        + (" For a linen module use anyinit.flax." if isinstance(got, linen.Module) else "")
    )
