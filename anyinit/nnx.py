"""anyinit for Flax nnx: ``init`` scales a module's weights in place, ``plan`` analyses it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from anyinit._analysis import analyse
from anyinit._arguments import check_inputs, check_mode, check_moment, selection
from anyinit._existing import is_constant, samples_of
from anyinit._findings import Reason
from anyinit._paths import Leaf, named_leaves
from anyinit._plan import LeftAlone, Plan
from anyinit._trace import Parameter, abstract, initial_samples, is_array, trace

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
        *args: the module's inputs. Arrays count by shape and dtype only; anything else is static.
        mode: ``"analytic"``.
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
    made = plan(
        model,
        *args,
        method=method,
        only=only,
        skip=skip,
        input_moment=input_moment,
        **kwargs,
    )
    nnx.update(model, made.rescale(nnx.state(model)))
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

    >>> x = jax.ShapeDtypeStruct((4, 128), np.float32)
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
    check_moment(input_moment)
    leaves, structure = jax.tree.flatten((args, kwargs))
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
        drawn, samples = made(position)
        parameters.append(
            Parameter(
                leaf.name,
                collection,
                tuple(leaf.value.shape),
                leaf.value.dtype,
                drawn and collection == "params",
                samples,
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
    traced = trace(forward, parameters, [shapes[i] for i in fixed], (streams, arrays), input_moment)
    result = analyse(traced, chosen)
    further = [LeftAlone(named[position].name, Reason.NOT_FLOAT) for position in random]
    return dataclasses.replace(result, left_alone=(*result.left_alone, *further))


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


def _read(named: Sequence[Leaf]) -> Callable[[int], tuple[bool, np.ndarray | None]]:
    """How the leaves of a module that exists are made, read off their values."""

    def made(position: int) -> tuple[bool, np.ndarray | None]:
        leaf = named[position]
        if isinstance(leaf.value, (jax.core.Tracer, jax.ShapeDtypeStruct)):
            raise TypeError(
                f"{leaf.name} has no values yet: got {type(leaf.value).__name__}, expected an "
                "array. Plan the function that makes the module, "
                "anyinit.nnx.plan(lambda rngs: Model(rngs), x), and apply the plan with "
                "nnx.update(model, plan.rescale(nnx.state(model)))."
            )
        if not jax.numpy.issubdtype(leaf.value.dtype, jax.numpy.floating):
            return False, None
        return not is_constant(leaf.value), samples_of(leaf.value)

    return made


def _drawn(make: Make) -> Callable[[int], tuple[bool, np.ndarray | None]]:
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
        f"got {name}" + (" itself, a class." if isinstance(got, type) else ".")
    )
