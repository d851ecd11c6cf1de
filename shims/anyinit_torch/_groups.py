"""Parameter groups for torch optimizers: one for each learning-rate multiplier."""

from __future__ import annotations

import math
from typing import Any

import torch

from anyinit._plan.plan import Plan
from anyinit._plan.rates import REST, rate_labels
from anyinit_torch._identity import replaced
from anyinit_torch._storages import Leaf, find_leaves


def param_groups(
    model: torch.nn.Module, plan: Plan, *, lr: float = 1e-3, **defaults: Any
) -> list[dict[str, Any]]:
    """Split a module's parameters into groups, each with its own multiple of the learning rate.

    >>> import torch, anyinit.torch
    >>> model = torch.nn.Linear(128, 256)
    >>> plan = anyinit.torch.init_(model, torch.zeros(4, 128))
    >>> groups = anyinit.torch.param_groups(model, plan, lr=3e-3)
    >>> optimizer = torch.optim.AdamW(groups)
    >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
    [('rest', 0.003, 2)]

    The groups are disjoint and together hold ``model.parameters()``, a tied table once. Schedulers
    that multiply (``LambdaLR``, cosine, warm-up) keep their ratio; ``OneCycleLR`` takes one rate a
    group: ``max_lr=[group["lr"] for group in groups]``. Decoupled weight decay is multiplied by
    the group's rate, as in ``torch.optim.AdamW``.

    Arguments:
        model: the module that was planned.
        plan: its plan.
        lr: the learning rate of weights whose multiplier is 1.
        **defaults: further options of every group, such as ``weight_decay``.

    Returns:
        Groups ``{"params", "lr", "name", "lr_multiplier", …}``: ``"rest"`` first, then
        ``"table"`` for tied tables and ``"scaled"`` for other weights whose multiplier is not 1,
        numbered where there are several.

    Raises:
        TypeError: if ``model`` is no module or ``plan`` is no plan.
        ValueError: if the plan belongs to another model, or ``lr`` is negative or no number.
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(plan, Plan):
        raise TypeError(
            "param_groups takes a torch.nn.Module and its plan, in this order: got "
            f"{type(model).__name__} and {type(plan).__name__}."
        )
    number = isinstance(lr, (int, float, torch.Tensor)) and not isinstance(lr, bool)
    if not number or not 0 <= float(lr) < math.inf:
        raise ValueError(f"lr={lr!r} is no learning rate: expected a number that is not negative.")
    leaves = find_leaves(model)
    _check(model, plan, leaves)
    labels, multipliers = rate_labels(plan)
    groups: dict[str, list[torch.nn.Parameter]] = {REST: []}
    label_of = {
        id(tensor): next((labels[name] for name in leaf.names if name in labels), REST)
        for leaf in leaves
        for tensor in (leaf.tensor, *leaf.same, *(view.tensor for view in leaf.views))
    }
    for parameter in model.parameters():
        groups.setdefault(label_of[id(parameter)], []).append(parameter)
    return [
        {
            "params": groups[label],
            "lr": lr * multipliers[label],
            "name": label,
            "lr_multiplier": multipliers[label],
            **defaults,
        }
        for label in multipliers
        if groups.get(label)
    ]


def _check(model: torch.nn.Module, plan: Plan, leaves: list[Leaf]) -> None:
    by_name = {name: leaf for leaf in leaves for name in leaf.names}
    faults = []
    owners: dict[int, str] = {}
    for row in plan.weights:
        leaf = by_name.get(row.path)
        if leaf is None:
            faults.append(f"planned, but not in the model: {row.path}")
        elif owners.setdefault(id(leaf), row.path) != row.path:
            faults.append(f"planned apart, but now tied: {row.path} and {owners[id(leaf)]}")
        elif tuple(leaf.tensor.shape) != row.shape:
            shape = tuple(leaf.tensor.shape)
            faults.append(f"shape differs: {row.path} is {shape}, planned as {row.shape}")
    faults += [
        f"in the model, but not in the plan: {leaf.names[0]}"
        for leaf in leaves
        if plan.known_names.isdisjoint(leaf.names)
    ]
    if faults:
        raise ValueError(
            "this plan does not belong to this model.\n  "
            + "\n  ".join(faults[:5])
            + "\nPlan the model itself: anyinit.torch.plan(model, *inputs)."
        )
    others = replaced(model, plan)
    if others:
        raise ValueError(
            f"{others[0]} was replaced since the plan was made (by load_state_dict(assign=True), "
            "to_empty() or an assignment): an optimizer made before would go on updating the old "
            "tensor, and the new one may not have been scaled. Call anyinit.torch.init_ (or plan) "
            "again, and make one optimizer of the groups of that plan."
        )
