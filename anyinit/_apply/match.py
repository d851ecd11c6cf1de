"""Whether a tree of parameters is the one that a plan was made for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from anyinit._leaf_names import PARAMS, Leaf
from anyinit._plan.plan import Plan

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """How a tree of parameters differs from what a plan expects.

    Arguments:
        missing: planned weights that the tree lacks.
        unexpected: parameters of the tree that the plan does not know. Leaves of collections
            other than ``params`` are state, which may come and go, and are never unexpected.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def lines(self) -> list[str]:
        """One line a kind of difference, each with at most a few names."""
        lines = []
        if self.missing:
            lines.append(f"planned, but not in the parameters: {_some(self.missing)}")
        if self.unexpected:
            lines.append(f"in the parameters, but not in the plan: {_some(self.unexpected)}")
        return lines


def mismatch(plan: Plan, leaves: Sequence[Leaf]) -> Mismatch:
    """Compare names alone, so that it may be asked of gradients and of labels too."""
    present = {leaf.name for leaf in leaves}
    missing = [
        weight.path for weight in plan.weights if present.isdisjoint((weight.path, *weight.aliases))
    ]
    unexpected = [
        leaf.name
        for leaf in leaves
        if leaf.collection == PARAMS and leaf.name not in plan.known_names
    ]
    return Mismatch(tuple(missing), tuple(unexpected))


def check_parameters(plan: Plan, leaves: Sequence[Leaf]) -> None:
    """Refuse parameters of another model.

    Arguments:
        plan: the plan to apply.
        leaves: the parameters' leaves.

    Raises:
        ValueError: a planned weight is missing, a parameter is unknown, or a planned weight has
            another shape or no floating-point dtype.
    """
    lines = mismatch(plan, leaves).lines()
    shapes, dtypes = [], []
    for leaf in leaves:
        weight = plan.weight_by_name.get(leaf.name)
        if weight is None:
            continue
        shape = tuple(jnp.shape(leaf.value))
        if shape != weight.shape:
            shapes.append(f"{leaf.name} is {shape}, planned as {weight.shape}")
        dtype = jnp.result_type(leaf.value)
        if not jnp.issubdtype(dtype, jnp.floating):
            dtypes.append(f"{leaf.name} is {dtype}, planned as {weight.dtype}")
    if shapes:
        lines.append(f"shape differs: {_some(shapes, '; ')}")
    if dtypes:
        lines.append(f"not a floating-point dtype: {_some(dtypes, '; ')}")
    if lines:
        raise ValueError(
            "these parameters do not belong to this plan; nothing was changed.\n  "
            + "\n  ".join(lines)
            + "\nPlan the model that they belong to, for example anyinit.flax.plan(model, x)."
        )


def _some(names: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(names[:_SHOWN])
    hidden = len(names) - _SHOWN
    return f"{shown} and {hidden} more" if hidden > 0 else shown
