"""Why one parameter has the scale it has, in words and numbers."""

from __future__ import annotations

import difflib
import math

from anyinit._plan.plan import Plan, WeightPlan
from anyinit._report.table_rows import number_text, range_text

# Where formula and scale differ by more, something else has a say.
_SAME_SCALE = 0.02


def explanation(plan: Plan, name: str) -> str:
    """What decided the scale of a parameter, or why it was left alone.

    Arguments:
        plan: the plan.
        name: the parameter's path, or an alias of it.

    Raises:
        KeyError: the plan knows no such parameter.
    """
    row = plan.weight_by_name.get(name)
    if row is not None:
        return "\n".join([*_decided(row), *_formula(row), *_said(plan, row)])
    for left in plan.left_alone:
        if left.path == name:
            return f"{name}\n  Left alone: {left.reason.value}"
    near = difflib.get_close_matches(name, plan.known_names, cutoff=0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise KeyError(
        f"the plan knows no parameter {name!r}.{hint} Its {len(plan.known_names)} names are those "
        "of plan.weights and plan.left_alone."
    )


def _decided(row: WeightPlan) -> list[str]:
    shape = "×".join(map(str, row.shape)) or "scalar"
    first = f" (the first of {len(row.sigma)} layers)" if isinstance(row.sigma, tuple) else ""
    bound = ", an upper bound: an average over tokens lies before it" if row.at_most else ""
    entering = "what is looked up" if row.fan == 1 and "lookup" in row.roles else "what enters"
    return [
        f"{' = '.join((row.path, *row.aliases))}  {shape}  {', '.join(row.roles)}{first}",
        f"  site      {row.site}  {row.where}".rstrip(),
        f"  target    {number_text(row.target):8}  second moment wanted there{bound}",
        f"  fan       {row.fan:<8}  elements that an entry of its product sums over",
        f"  E[x²] in  {number_text(row.moment_in):8}  second moment of {entering}",
        f"  c         {number_text(row.c):8}  constant factors on the way",
        f"  m         {number_text(row.m):8}  1/c, its multiple of the learning rate",
    ]


def _formula(row: WeightPlan) -> list[str]:
    planned = range_text(row.sigma)
    before = "" if row.std_before is None else f", drawn with {range_text(row.std_before)}"
    entering = row.fan * row.moment_in
    by_formula = math.sqrt(row.target / entering) / row.c if entering > 0 else math.nan
    first = row.sigma[0] if isinstance(row.sigma, tuple) else row.sigma
    lines = [f"  std       {planned:8}  √(target / (fan · E[x²])) / c{before}"]
    if not math.isclose(by_formula, first, rel_tol=_SAME_SCALE):
        lines.append(
            f"            The formula gives {number_text(by_formula)}: a limit, another use of the "
            "weight, or dropout or a mask on the way makes the rest."
        )
    return lines


def _said(plan: Plan, row: WeightPlan) -> list[str]:
    """The findings about a weight, and what a tied table does to the first loss."""
    names = {row.path, *row.aliases}
    lines = [f"  {each.message}" for each in plan.findings if each.subject in names]
    if row.arrival is not None:
        lines.append(f"  Its lookup arrives with E[x²] = {number_text(row.arrival)}.")
    if row.own_token_logit is not None:
        own = number_text(row.own_token_logit)
        lines.append(f"  The logit of the token that was looked up is about {own}.")
    return lines
