"""``plan`` and ``init_``: what a user calls on a module and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anyinit._plan import Plan
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
from anyinit_torch._planning import describe, make_plan, selected
from anyinit_torch._rescale import rescale_
from anyinit_torch._storages import Leaf, find_leaves


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
    check_call(model, "analytic", input_moment)
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
    made = make_plan(captured, leaves, chosen, input_moment, split, names)
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
        *args: the model's inputs. Tensors count by shape and dtype only; anything else is static.
        mode: ``"analytic"``.
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
    planned = plan(model, *args, only=only, skip=skip, input_moment=input_moment, **kwargs)
    rescale_(model, planned)
    return planned
