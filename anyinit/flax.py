"""anyinit for Flax linen: ``init`` in place of ``model.init``, ``plan`` alone, and ``measure``."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from anyinit._analysis import Analysis, examine
from anyinit._arguments import (
    call_note,
    check_batch,
    check_concrete,
    check_inputs,
    check_mode,
    check_moment,
    check_values,
    selection,
)
from anyinit._check import Check
from anyinit._empirical import measured_plan
from anyinit._leaf_names import PARAMS, Leaf, named_leaves
from anyinit._match import check_parameters
from anyinit._measure import measured_check
from anyinit._plan import Plan
from anyinit._site_values import SiteValues, named_sites, values_at
from anyinit._trace import Parameter, abstract, initial_samples, is_array, trace
from anyinit._variables import Variables

_DEFAULT_STREAMS = ("params", "dropout")


def init(
    model: nn.Module,
    rng: Any,
    *args: Any,
    mode: str = "analytic",
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Variables:
    """Initialize a linen model as ``model.init`` does, with the scale that its graph asks for.

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import anyinit
    >>> model = nn.Dense(256)
    >>> params = anyinit.flax.init(model, jax.random.key(0), jnp.zeros((4, 128)))
    >>> params.plan.weights[0].path
    'kernel'

    Every drawn weight is multiplied by one positive number; all else keeps its values.

    Arguments:
        model: the module.
        rng: a PRNG key, or a dict of keys by stream, as ``model.init`` takes it.
        *args: the model's inputs. Arrays count by shape and dtype only, unless they are measured
            on; anything else is static.
        mode: ``"analytic"``, or ``"empirical"`` to measure on the inputs, which are then a real
            batch: every weight is corrected by what it delivers there.
        only: path patterns (``*`` matches anything); only matching weights are scaled.
        skip: path patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the model, and ``method=``, ``mutable=``, ``rngs=``.

    Returns:
        The variables, a ``dict`` that carries its plan as ``.plan``.

    Raises:
        ValueError: if the mode is unknown, a pattern matches nothing, an input has no elements,
            or the model draws no weight; and if nothing can be measured on a batch (NaN, equal
            entries).
        TypeError: if ``mode="empirical"`` is called on shapes or inside a transformation.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    check_mode(mode)
    _check_module(model)
    _check_key(rng)
    leaves = jax.tree.leaves((args, kwargs))
    if mode == "analytic" and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise TypeError(
            "anyinit.flax.init draws the parameters, for which model.init needs arrays; got a "
            "jax.ShapeDtypeStruct. Use anyinit.flax.plan(model, x) for a plan from shapes, or "
            "jax.eval_shape around init."
        )
    extra = kwargs.pop("rngs", None)
    streams = dict(rng) if isinstance(rng, dict) else {"params": rng}
    if extra is not None:
        streams = {**streams, **(extra if isinstance(extra, dict) else {"default": extra})}
    initial = streams if extra is not None or isinstance(rng, dict) else rng
    traced = _traced(
        model,
        args,
        kwargs,
        streams if len(streams) > 1 else None,
        only,
        skip,
        input_moment,
    )
    if mode == "empirical":
        check_concrete(jax.tree.leaves(streams))
        check_batch(traced.arrays)
    made = traced.analysis.plan
    variables = made.rescale(Variables(model.init(initial, *args, **kwargs), plan=made))
    if mode == "empirical":
        made = measured_plan(traced.analysis, *traced.values(variables))
        variables = made.rescale(Variables(variables, plan=made))
    result: Variables = variables
    return result


def plan(
    model: nn.Module,
    *args: Any,
    rngs: Any = None,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Analyse a linen model from shapes alone.

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import anyinit
    >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
    >>> round(anyinit.flax.plan(nn.Dense(256), x).weights[0].sigma * 128**0.5, 3)
    1.0

    Arguments:
        model: the module.
        *args: the model's inputs: arrays or ``jax.ShapeDtypeStruct``.
        rngs: names of the model's further random streams (a dict of keys, or a list of names).
        only: path patterns of the weights to scale.
        skip: path patterns of the weights to leave as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the model, and ``method=``, ``mutable=``.

    Returns:
        The plan.

    Raises:
        ValueError: if a pattern matches nothing, an input has no elements, or the model draws
            no weight.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    return _traced(model, args, kwargs, rngs, only, skip, input_moment).analysis.plan


def measure(
    model: nn.Module,
    params: Any,
    *args: Any,
    plan: Plan | None = None,
    rngs: Any = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Check:
    """Run a linen model on a batch, and compare what it computes with what its plan predicts.

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import anyinit
    >>> x = jax.random.normal(jax.random.key(1), (64, 128))
    >>> params = anyinit.flax.init(nn.Dense(256), jax.random.key(0), x)
    >>> check = anyinit.flax.measure(nn.Dense(256), params, x)
    >>> check.assert_healthy(tolerance=0.1)
    >>> check.rows[0].path, check.rows[0].predicted
    ('kernel', 1.0)

    Arguments:
        model: the module.
        params: the whole variables, as ``init`` or a training step has them.
        *args: the model's inputs: a real batch.
        plan: the plan to compare with; by default the one that ``params`` carry, or else the
            model's analytic plan.
        rngs: names of the model's further random streams.
        input_moment: second moment E[x²] that the plan counts on for the float inputs.
        **kwargs: further arguments of the model, and ``method=``, ``mutable=``.

    Returns:
        A row for each site, output and residual stream: predicted and measured second moment, the
        sampling error of the measurement, and a verdict.

    Raises:
        ValueError: the parameters are of another model, or nothing can be measured on the batch.
        TypeError: an input or a parameter has no values.
    """
    made = plan if plan is not None else getattr(params, "plan", None)
    only = None
    if made is not None:
        check_parameters(made, named_leaves(params, made.known_names)[0])
        only = [glob.escape(row.path) for row in made.weights]
    traced = _traced(model, args, kwargs, rngs, only, None, input_moment, params)
    leaves, arrays = traced.values(params)
    check_batch(traced.arrays)
    check_values(leaves)
    return measured_check(traced.analysis, made or traced.analysis.plan, leaves, arrays)


def site_values(model: nn.Module, *args: Any, rngs: Any = None, **kwargs: Any) -> SiteValues:
    """What a linen model computes at the sites of its weights, as a function of its variables.

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import anyinit
    >>> x = jax.random.normal(jax.random.key(1), (4, 32))
    >>> model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(8)])
    >>> values = anyinit.flax.site_values(model, x)
    >>> values.names
    ('layers_0/kernel, nonlinearity', 'output')
    >>> [value.shape for value in values.of(model.init(jax.random.key(0), x))]
    [(4, 64), (4, 8)]

    Arguments:
        model: the module.
        *args: the model's inputs: a real batch.
        rngs: names of the model's further random streams.
        **kwargs: further arguments of the model, and ``method=``, ``mutable=``.

    Returns:
        The names of the sites, and a function of the variables that can be jitted.
    """
    traced = _traced(model, args, kwargs, rngs, None, None, 1.0)
    check_batch(traced.arrays)
    sites = named_sites(traced.analysis)

    def of(variables: Any) -> list[jax.Array]:
        return values_at(traced.analysis, list(sites.values()), *traced.values(variables))

    return SiteValues(tuple(sites), of)


@dataclasses.dataclass(frozen=True)
class _Traced:
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


def _traced(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rngs: Any,
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
    input_moment: float,
    given: Any = None,
) -> _Traced:
    """Trace a model and analyse it; parameters that are given have to be this model's."""
    _check_module(model)
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
    return _Traced(
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


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        got = model.__name__ if isinstance(model, type) else type(model).__name__
        hint = " itself, a class: create an instance first." if isinstance(model, type) else "."
        kind = model if isinstance(model, type) else type(model)
        roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
        for root, name in (("keras", "keras"), ("torch", "torch"), ("flax", "nnx")):
            if root in roots and not issubclass(kind, nn.Module):
                hint += f" For such a model use anyinit.{name}."
                break
        raise TypeError(f"Expected an instance of flax.linen.Module, got {got}{hint}")


def _check_key(rng: Any) -> None:
    for leaf in jax.tree.leaves(rng):
        dtype = getattr(leaf, "dtype", None)
        is_key = dtype is not None and (
            jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32
        )
        if not is_key:
            raise TypeError(
                "Expected a PRNG key (or a dict of keys) after the model, got "
                f"{type(leaf).__name__} of dtype {dtype}. "
                "Call anyinit.flax.init(model, jax.random.key(0), x)."
            )
