"""``plan`` and ``init``: what a user calls on a Keras model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras

from anyinit._arguments import check_inputs, check_mode, check_moment, selection
from anyinit._findings import Reason
from anyinit._plan import LeftAlone, Plan
from anyinit_keras._build import build
from anyinit_keras._checks import check_drawn, check_model, check_values
from anyinit_keras._inputs import call_of, is_array
from anyinit_keras._names import named_variables, seed_states

Patterns = str | Sequence[str] | None


def plan(
    model: keras.Layer,
    x: Any = None,
    *,
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Analyse a Keras model; no variable is changed.

    >>> import keras
    >>> import anyinit.keras
    >>> model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(256)])
    >>> round(anyinit.keras.plan(model).weights[0].sigma * 128**0.5, 3)
    1.0

    The model is followed as ``fit`` runs it: with ``training=True`` where its ``call`` takes it.
    An unbuilt model is built by a call on symbolic tensors.

    Arguments:
        model: a functional, sequential or subclassed model, or a layer; backend JAX or torch.
        x: the model's first argument: arrays or ``jax.ShapeDtypeStruct``, one or a list, tuple or
            dict of them. Arrays count by shape and dtype only. By default the model's symbolic
            inputs, their unknown dimensions filled in.
        only: path patterns (``*`` matches anything); only matching weights are scaled.
        skip: path patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the model's ``call``, such as ``training=False``.

    Returns:
        The plan; its paths are those of the variables.

    Raises:
        TypeError: the model is no Keras 3 model, or its ``call`` lacks an argument.
        ValueError: if Keras rejects the input, the model has no symbolic input and ``x`` is not
            given, a pattern matches nothing, or the model has no drawn weight.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    return _planned(model, x, only, skip, input_moment, kwargs, in_place=False)


def init(
    model: keras.Layer,
    x: Any = None,
    *,
    mode: str = "analytic",
    only: Patterns = None,
    skip: Patterns = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Give every drawn weight of a Keras model the scale that its computation asks for, in place.

    >>> import keras
    >>> import anyinit.keras
    >>> model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(256)])
    >>> plan = anyinit.keras.init(model)
    >>> round(float(keras.ops.mean(model.layers[0].kernel ** 2)) * 128, 3)
    1.0

    Every drawn weight is multiplied by one positive number. Variables whose entries are all equal
    are constant and keep their values, as do those that are not trainable. A second call changes
    nothing beyond rounding.

    Arguments:
        model: a functional, sequential or subclassed model, or a layer; backend JAX or torch.
        x: the model's first argument; see ``plan``.
        mode: ``"analytic"``.
        only: path patterns (``*`` matches anything); only matching weights are scaled.
        skip: path patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of the model's ``call``, such as ``training=False``.

    Returns:
        The plan that was applied.

    Raises:
        TypeError: as for ``plan``.
        ValueError: as for ``plan``; and if the mode is unknown. Nothing is changed then.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    check_mode(mode)
    return _planned(model, x, only, skip, input_moment, kwargs, in_place=True)


def _planned(
    model: keras.Layer,
    x: Any,
    only: Patterns,
    skip: Patterns,
    input_moment: float,
    kwargs: Mapping[str, Any],
    *,
    in_place: bool,
) -> Plan:
    check_model(model)
    check_moment(input_moment)
    call = call_of(model, x, kwargs)
    check_inputs([leaf for leaf in jax.tree.leaves((call.x, call.further)) if is_array(leaf)])
    build(model, call)
    named = named_variables(model)
    check_values(named)
    # Each backend's module imports what that backend needs.
    if keras.backend.backend() == "jax":
        from anyinit_keras._on_jax import describe, plan_on_jax, rescale_on_jax

        drawn = [name for name, v in named.items() if v.trainable and describe(name, v).drawn]
        check_drawn(model, len(named), len(drawn))
        wanted = selection(drawn, only, skip)
        trainable = set(drawn)
        made = plan_on_jax(
            model,
            named,
            seed_states(model),
            call,
            lambda name: name in trainable and wanted(name),
            input_moment,
        )
        if in_place:
            rescale_on_jax(named, made)
    else:
        from anyinit_keras._on_torch import plan_on_torch

        check_drawn(model, len(named), sum(v.trainable for v in named.values()))
        made = plan_on_torch(model, named, call, only, skip, input_moment, in_place)
    return _in_keras_terms(made, named)


def _in_keras_terms(plan: Plan, named: Mapping[str, keras.Variable]) -> Plan:
    """Every variable listed, those that take no gradient as frozen."""
    listed = {row.path: row.reason for row in plan.left_alone}
    planned = plan.weight_by_name
    left = []
    for name, variable in named.items():
        if name in planned:
            continue
        reason = listed.get(name, Reason.NOT_FLOAT)
        if not variable.trainable and reason in (Reason.SKIPPED, Reason.CONSTANT):
            reason = Reason.FROZEN
        left.append(LeftAlone(name, reason))
    return dataclasses.replace(plan, left_alone=tuple(left))
