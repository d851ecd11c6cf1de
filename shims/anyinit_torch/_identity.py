"""Remembers which parameter objects a plan was made for, without keeping them alive."""

from __future__ import annotations

import weakref

import torch

from anyinit._plan.plan import Plan

_Objects = dict[str, "weakref.ref[torch.nn.Parameter]"]

_PLANNED: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Plan, _Objects]] = (
    weakref.WeakKeyDictionary()
)


def remember(model: torch.nn.Module, plan: Plan) -> None:
    """Note the parameters that a model has at the time of its plan.

    Arguments:
        model: the model.
        plan: the plan just made.
    """
    objects = {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}
    _PLANNED[model] = (plan, objects)


def replaced(model: torch.nn.Module, plan: Plan) -> list[str]:
    """Names of parameters that are other objects than when this plan was made for this model.

    Arguments:
        model: the model.
        plan: the plan; of one that was read from a file, or made for another model of the same
            shapes, nothing is known.
    """
    known = _PLANNED.get(model)
    if known is None or known[0] is not plan:
        return []
    return [
        name
        for name, parameter in model.named_parameters()
        if name in known[1] and known[1][name]() is not parameter and not _is_sharded(parameter)
    ]


def _is_sharded(parameter: torch.Tensor) -> bool:
    """Whether a parameter is a shard of what it was: wrapping comes after initializing."""
    return hasattr(parameter, "device_mesh")
