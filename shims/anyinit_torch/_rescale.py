"""Applies a plan to a module in place, one write a storage."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anyinit._plan.plan import Plan
from anyinit_torch._dtypes import dtype_name
from anyinit_torch._storages import Leaf, find_leaves

# Elements that are squared at a time: no second copy of a table is ever made.
_PIECE = 1 << 22


def rescale_(model: torch.nn.Module, plan: Plan) -> None:
    """Give every planned weight the standard deviation that the plan asks for.

    Arguments:
        model: the module that was planned.
        plan: its plan.

    Raises:
        ValueError: if a planned weight is missing, or has another shape or no floating-point
            dtype; nothing is changed then.
    """
    factors = check_plan(model, plan)
    with torch.no_grad():
        measured = [(leaf, sigma, root_mean_square(leaf.tensor)) for leaf, sigma in factors]
        for leaf, sigma, rms in measured:
            if rms > 0:
                _multiply(leaf, sigma / rms)


def check_plan(model: torch.nn.Module, plan: Plan) -> list[tuple[Leaf, float]]:
    """The planned weights of a model with their standard deviations.

    Arguments:
        model: the module that was planned.
        plan: its plan.

    Raises:
        ValueError: as for ``rescale_``.
    """
    leaves = {name: leaf for leaf in find_leaves(model) for name in leaf.names}
    factors: list[tuple[Leaf, float]] = []
    faults = []
    for row in plan.weights:
        leaf = leaves.get(row.path)
        if leaf is None:
            faults.append(f"{row.path} is planned, but not in the model")
        elif tuple(leaf.tensor.shape) != row.shape:
            faults.append(f"{row.path} is {tuple(leaf.tensor.shape)}, planned as {row.shape}")
        elif not leaf.tensor.is_floating_point():
            faults.append(f"{row.path} is {dtype_name(leaf.tensor.dtype)}, planned as {row.dtype}")
        elif isinstance(row.sigma, tuple):
            faults.append(f"{row.path} is planned layer by layer, as no module's parameter is")
        else:
            factors.append((leaf, row.sigma))
    if faults:
        raise ValueError(
            "this plan does not belong to this model; nothing was changed.\n  "
            + "\n  ".join(faults[:5])
            + "\nPlan the model itself: anyinit.torch.plan(model, *inputs)."
        )
    return factors


def root_mean_square(tensor: torch.Tensor) -> float:
    """Root mean square of a weight, rows that are all zero (padding) left out.

    >>> root_mean_square(torch.tensor([[3.0, -3.0], [0.0, 0.0]]))
    3.0

    Arguments:
        tensor: weight of any shape and floating-point dtype.
    """
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    tensor = tensor.detach()
    peak = float(tensor.abs().amax())
    if peak == 0.0:
        return 0.0
    total, rows = 0.0, 0
    width = tensor[0].numel() if tensor.ndim > 1 else 1
    for piece in _pieces(tensor):
        # Squares of very large or small entries leave the range: the largest is divided out.
        squares = (piece.to(wide) / peak).square_().reshape(piece.shape[0], -1)
        sums = squares.sum(1, dtype=torch.float64)
        total += float(sums.sum())
        rows += piece.shape[0] if tensor.ndim < 2 else int((sums != 0).sum())
    return float(peak * (total / (rows * width)) ** 0.5)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Groups of rows of limited size."""
    width = tensor[0].numel() if tensor.ndim > 1 else 1
    yield from torch.split(tensor, max(_PIECE // max(width, 1), 1))


def _multiply(leaf: Leaf, factor: float) -> None:
    tensor = leaf.tensor
    if tensor.dtype in (torch.float32, torch.float64):
        tensor.mul_(factor)
        return
    for piece in _pieces(tensor):
        piece.copy_((piece.to(torch.float32) * factor).to(tensor.dtype))
