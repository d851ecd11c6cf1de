"""anyinit for Flax nnx: ``init`` scales a module's weights in place; ``plan`` and ``measure``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from anyinit._apply.match import check_parameters
from anyinit._arguments import check_batch, check_mode, exactly
from anyinit._flax.nnx import no_module, trace_nnx
from anyinit._leaf_names import named_leaves
from anyinit._measure.check import Check
from anyinit._measure.empirical import measured_plan
from anyinit._measure.measure import measured_check
from anyinit._plan.plan import Plan


def init(
    model: nnx.Module,
    *args: Any,
    mode: str = "analytic",
    method: str | Callable[..., Any] = "__call__",
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Scale the weights of an nnx module in place, as its computation asks for.

    >>> import anyinit
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> model = nnx.Linear(128, 256, rngs=nnx.Rngs(0))
    >>> plan = anyinit.nnx.init(model, jnp.zeros((4, 128)))
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
        raise no_module(model)
    traced = trace_nnx(
        model, args, kwargs, method=method, only=only, skip=skip, input_moment=input_moment
    )
    state = nnx.state(model)
    made = traced.finished(traced.analysis.plan)
    if mode == "empirical":
        check_batch(traced.arrays)
        measured = measured_plan(traced.analysis, *traced.values(made.rescale(state)))
        made = traced.finished(measured)
    nnx.update(model, made.rescale(state))
    return made


def plan(
    model: nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    *args: Any,
    method: str | Callable[..., Any] = "__call__",
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Analyse an nnx module, or from shapes alone the one that a function makes.

    >>> import anyinit
    >>> import jax
    >>> from flax import nnx
    >>> x = jax.ShapeDtypeStruct((4, 128), jax.numpy.float32)
    >>> made = anyinit.nnx.plan(lambda rngs: nnx.Linear(128, 256, rngs=rngs), x)
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
    traced = trace_nnx(
        model, args, kwargs, method=method, only=only, skip=skip, input_moment=input_moment
    )
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

    >>> import anyinit
    >>> import jax
    >>> from flax import nnx
    >>> x = jax.random.normal(jax.random.key(1), (64, 128))
    >>> model = nnx.Linear(128, 256, rngs=nnx.Rngs(0))
    >>> plan = anyinit.nnx.init(model, x)
    >>> anyinit.nnx.measure(model, x, plan=plan).assert_healthy(tolerance=0.1)

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
        raise no_module(model)
    state = nnx.state(model)
    only = None
    if plan is not None:
        check_parameters(plan, named_leaves(state, plan.known_names)[0])
        only = exactly(plan)
    traced = trace_nnx(model, args, kwargs, method=method, only=only, input_moment=input_moment)
    check_batch(traced.arrays)
    return measured_check(traced.analysis, plan or traced.analysis.plan, *traced.values(state))
