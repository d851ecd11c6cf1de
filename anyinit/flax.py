"""anyinit for Flax linen: ``init`` in place of ``model.init``, ``plan`` alone, and ``measure``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from anyinit._apply.match import check_parameters
from anyinit._apply.variables import Variables
from anyinit._arguments import (
    check_batch,
    check_concrete,
    check_mode,
    check_values,
    exactly,
)
from anyinit._flax.linen import check_linen, trace_linen
from anyinit._leaf_names import named_leaves
from anyinit._measure.check import Check
from anyinit._measure.empirical import measured_plan
from anyinit._measure.measure import measured_check
from anyinit._measure.site_values import SiteValues, named_sites, values_at
from anyinit._plan.plan import Plan


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
    check_linen(model)
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
    traced = trace_linen(
        model,
        args,
        kwargs,
        rngs=streams if len(streams) > 1 else None,
        only=only,
        skip=skip,
        input_moment=input_moment,
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
    traced = trace_linen(
        model, args, kwargs, rngs=rngs, only=only, skip=skip, input_moment=input_moment
    )
    return traced.analysis.plan


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
    >>> check.rows[0].path, round(check.rows[0].predicted, 3)
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
        only = exactly(made)
    traced = trace_linen(
        model, args, kwargs, rngs=rngs, only=only, input_moment=input_moment, given=params
    )
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
    traced = trace_linen(model, args, kwargs, rngs=rngs)
    check_batch(traced.arrays)
    sites = named_sites(traced.analysis)

    def of(variables: Any) -> list[jax.Array]:
        return values_at(traced.analysis, list(sites.values()), *traced.values(variables))

    return SiteValues(tuple(sites), of)


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
