"""Which weights have a learning rate of their own, and which of them share it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from anyinit._plan.plan import Plan, WeightPlan

REST = "rest"

# Rates that differ by less are the same: dropout leaves as much in a constant factor.
_SAME_RATE = 1e-3


def is_same_rate(first: float, second: float) -> bool:
    """Whether two multipliers of the learning rate count as one.

    >>> is_same_rate(4.0, 4.001), is_same_rate(4.0, 4.1)
    (True, False)
    """
    return math.isclose(first, second, rel_tol=_SAME_RATE)


def rows_with_own_rate(plan: Plan) -> list[WeightPlan]:
    """The weights whose multiplier m is not 1."""
    return [row for row in plan.weights if not is_same_rate(row.m, 1.0)]


def grouped_by_rate(rows: Iterable[WeightPlan]) -> list[list[WeightPlan]]:
    """Weights of the same m together, the group of the largest leaf first."""
    groups: list[list[WeightPlan]] = []
    # By path among equals: the groups must not depend on the order of the plan's rows.
    for row in sorted(rows, key=lambda row: (-math.prod(row.shape), row.path)):
        for group in groups:
            if is_same_rate(row.m, group[0].m):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def rate_labels(plan: Plan) -> tuple[dict[str, str], dict[str, float]]:
    """The label of each weight whose m is not 1, by all its names, and the m of each label.

    ``"table"`` is a tied table, ``"scaled"`` any other weight; further values of m are numbered
    from 2, and everything that has no label belongs to ``"rest"``.
    """
    own = rows_with_own_rate(plan)
    tables = [row for row in own if row.is_tied]
    others = [row for row in own if not row.is_tied]
    labels: dict[str, str] = {}
    multipliers = {REST: 1.0}
    for stem, rows in (("table", tables), ("scaled", others)):
        for number, group in enumerate(grouped_by_rate(rows), start=1):
            label = stem if number == 1 else f"{stem}:{number}"
            multipliers[label] = group[0].m
            labels |= {name: label for row in group for name in (row.path, *row.aliases)}
    return labels, multipliers
