"""``plan``, ``init_`` and ``measure``: what a user calls on a module and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anyinit._arguments import check_batch, exactly
from anyinit._measure.check import Check
from anyinit._measure.empirical import measured_plan
from anyinit._measure.measure import measured_check
from anyinit._plan.plan import Plan
from anyinit_torch._capture import capture
from anyinit_torch._checks import (
    check_call,
    check_drawn,
    check_elements,
    check_inputs,
    check_materialised,
    split_ties,
)
from anyinit_torch._identity import remember
from anyinit_torch._inputs import tensors_in
from anyinit_torch._parametrized import computed_weights
from anyinit_torch._planning import Planning, analysed, describe, selected
from anyinit_torch._rescale import check_plan, rescale_
from anyinit_torch._storages import Leaf, find_leaves
from anyinit_torch._values import array_of, on_cpu, values_of


def plan(
    model: torch.nn.Module,
    *args: Any,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Analyse a module; nothing is changed and, as a rule, nothing is computed.

    >>> import torch, anyinit.torch
    >>> model = torch.nn.Linear(128, 256)
    >>> round(anyinit.torch.plan(model, torch.zeros(4, 128)).weights[0].sigma * 128**0.5, 3)
    1.0

    The forward pass runs once on fake tensors, which hold no data. Only where it depends on
    values (``.item()``, data-dependent branches) does it run on the real ones.

    Arguments:
        model: the module, in the mode (train or eval) in which it is to be analysed; on any
            device, the meta device included.
        *args: the model's inputs. Tensors count by shape and dtype only; anything else is static.
        only: name patterns (``*`` matches anything); only matching weights are scaled.
        skip: name patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of ``forward``.

    Returns:
        The plan; its paths are the dotted names of the parameters.

    Raises:
        TypeError: if the model is no module that Python runs.
        ValueError: if forward rejects the inputs, a pattern matches nothing, or the model has no
            drawn weight.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    planning = _planning(model, args, kwargs, "analytic", only, skip, input_moment)
    made = planning.finished(planning.analysis.plan)
    remember(model, made)
    return made


def init_(
    model: torch.nn.Module,
    *args: Any,
    mode: str = "analytic",
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Plan:
    """Give every drawn weight of a module the scale that its forward pass asks for, in place.

    >>> import torch, anyinit.torch
    >>> model = torch.nn.Linear(128, 256)
    >>> plan = anyinit.torch.init_(model, torch.zeros(4, 128))
    >>> round(float(model.weight.detach().square().mean()) * 128, 3)
    1.0

    Every drawn weight is multiplied by one positive number; all else keeps its values. Tie
    weights before, compile and wrap after. A second call changes nothing beyond rounding.

    Arguments:
        model: the module, with its own initialization done.
        *args: the model's inputs. Tensors count by shape and dtype only, unless they are measured
            on; anything else is static.
        mode: ``"analytic"``, or ``"empirical"`` to measure on the inputs, which are then a real
            batch: every weight is corrected by what it delivers there.
        only: name patterns (``*`` matches anything); only matching weights are scaled.
        skip: name patterns; matching weights are left as drawn.
        input_moment: second moment E[x²] of the float inputs.
        **kwargs: further arguments of ``forward``.

    Returns:
        The plan that was applied.

    Raises:
        TypeError: if the model is no module that Python runs.
        ValueError: as for ``plan``; and if a parameter has no values (meta device, empty shard).
            Nothing is changed then.
        FloatingPointError: if the signal becomes NaN or infinite during the analysis.
    """
    check_call(model, mode, input_moment)
    check_materialised(find_leaves(model))
    if mode == "empirical":
        check_batch([array_of(tensor) for tensor in tensors_in((args, kwargs))])
    planning = _planning(model, args, kwargs, mode, only, skip, input_moment)
    made = planning.analysis.plan
    if mode == "empirical":
        with on_cpu():
            made = measured_plan(planning.analysis, *values_of(planning, args, kwargs, made))
    made = planning.finished(made)
    remember(model, made)
    rescale_(model, made)
    return made


def measure(
    model: torch.nn.Module,
    *args: Any,
    plan: Plan | None = None,
    input_moment: float = 1.0,
    **kwargs: Any,
) -> Check:
    """Run a module on a batch, and compare what it computes with what its plan predicts.

    >>> import torch, anyinit.torch
    >>> model, x = torch.nn.Linear(128, 256), torch.randn(64, 128)
    >>> plan = anyinit.torch.init_(model, x)
    >>> anyinit.torch.measure(model, x, plan=plan).assert_healthy(tolerance=0.1)

    The forward pass is recorded and run on the processor, once; nothing of the module is changed.

    Arguments:
        model: the module, in the mode (train or eval) in which it is to be measured.
        *args: the model's inputs: a real batch.
        plan: the plan to compare with; by default the module's analytic plan.
        input_moment: second moment E[x²] that the plan counts on for the float inputs.
        **kwargs: further arguments of ``forward``.

    Returns:
        A row for each site, output and residual stream: predicted and measured second moment, the
        sampling error of the measurement, and a verdict.

    Raises:
        TypeError: if the model is no module that Python runs.
        ValueError: as for ``init_``; and if the plan belongs to another model.
    """
    check_call(model, "empirical", input_moment)
    check_materialised(find_leaves(model))
    check_batch([array_of(tensor) for tensor in tensors_in((args, kwargs))])
    only = None
    if plan is not None:
        check_plan(model, plan)
        only = exactly(plan)
    planning = _planning(model, args, kwargs, "empirical", only, None, input_moment)
    compared = planning.analysis.plan if plan is None else plan
    with on_cpu():
        return measured_check(planning.analysis, compared, *values_of(planning, args, kwargs))


def _planning(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mode: str,
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
    input_moment: float,
) -> Planning:
    """Record a module's forward pass and analyse it."""
    check_call(model, mode, input_moment)
    leaves = find_leaves(model)
    check_elements(leaves)
    check_inputs(tensors_in((args, kwargs)))
    parameters = [describe(leaf) for leaf in leaves]
    check_drawn(model, parameters)
    chosen = selected(parameters, only, skip)
    split = split_ties(model, leaves)
    weights = list(computed_weights(model))
    leaves += [Leaf((name,), value, (), (), trainable=False) for name, _, value in weights]
    computed: dict[torch.nn.Module, torch.Tensor] = {module: value for _, module, value in weights}
    captured = capture(model, leaves, computed, args, kwargs)
    names = [name for name, _, _ in weights]
    return analysed(captured, leaves, chosen, input_moment, split, names)
