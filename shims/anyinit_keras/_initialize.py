"""``plan``, ``init`` and ``measure``: what a user calls on a Keras model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras

from anyinit._arguments import (
    check_batch,
    check_inputs,
    check_mode,
    check_moment,
    exactly,
    selection,
)
from anyinit._findings import Reason
from anyinit._measure.check import Check
from anyinit._measure.empirical import measured_plan
from anyinit._measure.measure import measured_check
from anyinit._plan.plan import LeftAlone, Plan
from anyinit_keras._build import build
from anyinit_keras._checks import (
    check_calls,
    check_drawn,
    check_model,
    check_plan,
    check_values,
)
from anyinit_keras._inputs import batch_of, call_of, is_array
from anyinit_keras._names import named_variables, seed_states
from anyinit_keras._values import rescale, where_values_are

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
        model: a functional, sequential or subclassed model, or a layer; on the JAX, torch or
            TensorFlow backend.
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
    return _prepared(model, x, kwargs, only, skip, input_moment).planned()


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
        model: a functional, sequential or subclassed model, or a layer; on the JAX, torch or
            TensorFlow backend.
        x: the model's first argument; see ``plan``.
        mode: ``"analytic"``, or ``"empirical"`` to measure on ``x``, which is then a real batch:
            every weight is corrected by what it delivers there.
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
    empirical = mode == "empirical"
    return _prepared(model, x, kwargs, only, skip, input_moment, empirical).initialized(empirical)


def measure(
    model: keras.Layer,
    x: Any,
    *,
    plan: Plan | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Check:
    """Run a Keras model on a batch, and compare what it computes with what its plan predicts.

    >>> import keras, numpy as np
    >>> import anyinit.keras
    >>> model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(256)])
    >>> plan = anyinit.keras.init(model)
    >>> x = np.random.default_rng(0).normal(size=(64, 128)).astype("float32")
    >>> anyinit.keras.measure(model, x, plan=plan).assert_healthy(tolerance=0.1)

    Arguments:
        model: the model; none of its variables is changed.
        x: the model's first argument: a real batch.
        plan: the plan to compare with; by default the model's analytic plan.
        input_moment: second moment E[x²] that the plan counts on for the float inputs.
        **kwargs: further arguments of the model's ``call``, such as ``training=False``.

    Returns:
        A row for each site, output and residual stream: predicted and measured second moment, the
        sampling error of the measurement, and a verdict.

    Raises:
        TypeError: as for ``plan``.
        ValueError: as for ``init``; and if the plan belongs to another model.
    """
    only = None
    if plan is not None:
        check_model(model)
        if model.built:
            check_plan(model, plan, named_variables(model))
        only = exactly(plan)
    return _prepared(model, x, kwargs, only, None, input_moment, True).measured(plan)


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A built model, analysed on its backend.

    Arguments:
        named: its variables by name.
        batch: the arrays among its inputs, where they are measured on.
        traced: the analysis, on the JAX and TensorFlow backends.
        on_torch: the model as a module, on the torch backend.
        options: what ``anyinit.torch`` is to be called with there.
    """

    named: Mapping[str, keras.Variable]
    batch: Sequence[Any] | None
    traced: Any
    on_torch: Any
    options: Mapping[str, Any]

    def planned(self) -> Plan:
        """The analytic plan."""
        if self.traced is not None:
            return _in_keras_terms(self.traced.analysis.plan, self.named)
        import anyinit_torch

        return _in_keras_terms(self.on_torch.run(anyinit_torch.plan, **self.options), self.named)

    def initialized(self, empirical: bool) -> Plan:
        """The plan, measured or not, applied to the variables."""
        if self.traced is not None:
            with where_values_are():
                made: Plan = self.traced.analysis.plan
                if empirical:
                    values = self.traced.values(self.batch, made)
                    made = measured_plan(self.traced.analysis, *values)
                rescale(self.named, made)
        else:
            import anyinit_torch

            mode = "empirical" if empirical else "analytic"
            made = self.on_torch.run(anyinit_torch.init_, mode=mode, **self.options)
        return _in_keras_terms(made, self.named)

    def measured(self, plan: Plan | None) -> Check:
        """The model as it is, compared with a plan."""
        if self.traced is not None:
            compared = self.traced.analysis.plan if plan is None else plan
            with where_values_are():
                values = self.traced.values(self.batch, None)
                return measured_check(self.traced.analysis, compared, *values)
        import anyinit_torch

        moment = self.options["input_moment"]
        check: Check = self.on_torch.run(anyinit_torch.measure, plan=plan, input_moment=moment)
        return check


def _prepared(
    model: keras.Layer,
    x: Any,
    kwargs: Mapping[str, Any],
    only: Patterns,
    skip: Patterns,
    input_moment: float,
    measures: bool = False,
) -> _Prepared:
    """Build a model, and analyse it as its backend asks for."""
    check_model(model)
    check_calls(model)
    check_moment(input_moment)
    call = call_of(model, x, kwargs)
    check_inputs([leaf for leaf in jax.tree.leaves((call.x, call.further)) if is_array(leaf)])
    batch = None
    if measures:
        batch = batch_of(model, x, kwargs, call)
        check_batch(batch)
    build(model, call)
    named = named_variables(model)
    check_values(named)
    options = {"only": only, "skip": skip, "input_moment": input_moment}
    # Each backend's module imports what that backend needs.
    if keras.backend.backend() == "torch":
        from anyinit_keras._on_torch import on_torch

        check_drawn(model, len(named), sum(v.trainable for v in named.values()))
        return _Prepared(named, batch, None, on_torch(model, named, call, batch), options)
    from anyinit_keras._traced import analyse, describe

    lower: Any
    if keras.backend.backend() == "jax":
        from anyinit_keras._on_jax import as_it_is as lower
    else:
        from anyinit_keras._on_tensorflow import lowered as lower
    drawn = [name for name, v in named.items() if v.trainable and describe(name, v).drawn]
    check_drawn(model, len(named), len(drawn))
    wanted = selection(drawn, only, skip)
    trainable = set(drawn)
    traced = analyse(
        model,
        named,
        seed_states(model),
        call,
        lambda name: name in trainable and wanted(name),
        input_moment,
        lower,
    )
    return _Prepared(named, batch, traced, None, options)


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
