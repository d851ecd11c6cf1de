"""The table of a report: one row a weight, nearly equal layers alike."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence

from anyinit._plan.plan import WeightPlan

COLUMNS = ("weight", "shape", "roles", "site", "fan", "E[x²] in", "c", "target", "std", "m")
NUMERIC = ("fan", "E[x²] in", "c", "target", "m")

# Numbers that differ by less are shown as one.
_NEARLY = 0.05


def _name(row: WeightPlan) -> str:
    return " = ".join((row.path, *row.aliases))


def table_rows(weights: Sequence[WeightPlan]) -> list[tuple[str, tuple[str, ...]]]:
    """The name and cells of each weight, nearly equal ones rounded to the same text.

    Layers of one kind differ in the third digit. Apart, they would hide the rows that matter.

    Arguments:
        weights: the rows of a plan.

    Returns:
        One entry a weight, its cells in the order of ``COLUMNS`` after the first.
    """
    groups: dict[Hashable, list[list[int]]] = {}
    for position, row in enumerate(weights):
        kind = (
            re.sub(r"\d+", "", _name(row)),
            *_cells(row, [""] * 6),
            isinstance(row.sigma, tuple),
        )
        alike = groups.setdefault(kind, [])
        for members in alike:
            if _nearly_equal(weights[members[0]], row):
                members.append(position)
                break
        else:
            alike.append([position])
    cells: list[tuple[str, ...]] = [()] * len(weights)
    for members in (members for alike in groups.values() for members in alike):
        columns = zip(*(_numbers_of(weights[i]) for i in members), strict=True)
        texts = [_common(column) for column in columns]
        for position in members:
            cells[position] = _cells(weights[position], texts)
    return list(zip(map(_name, weights), cells, strict=True))


def _numbers_of(row: WeightPlan) -> tuple[float | tuple[float, ...] | None, ...]:
    return row.moment_in, row.c, row.target, row.std_before, row.sigma, row.m


def _nearly_equal(one: WeightPlan, other: WeightPlan) -> bool:
    return all(
        (left is None and right is None)
        or (
            isinstance(left, float | int)
            and isinstance(right, float | int)
            and math.isclose(left, right, rel_tol=_NEARLY)
        )
        or left == right
        for left, right in zip(_numbers_of(one), _numbers_of(other), strict=True)
    )


def _common(column: Sequence[float | tuple[float, ...] | None]) -> str:
    """One text for numbers that are nearly equal."""
    texts = {"?" if value is None else range_text(value) for value in column}
    if len(texts) == 1:
        return texts.pop()
    numbers = sorted(value for value in column if isinstance(value, float | int))
    return f"≈ {numbers[len(numbers) // 2]:.2g}"


def _cells(row: WeightPlan, numbers: Sequence[str]) -> tuple[str, ...]:
    moment_in, c, target, before, sigma, m = numbers
    layers = f" ({len(row.sigma)} layers)" if isinstance(row.sigma, tuple) else ""
    return (
        "×".join(str(size) for size in row.shape) or "scalar",
        ", ".join(row.roles),
        f"{row.site}  {row.where}".rstrip(),
        str(row.fan),
        moment_in,
        c,
        f"{'≤ ' if row.at_most else ''}{target}",
        f"{before} → {sigma}{layers}",
        m,
    )


def range_text(value: float | tuple[float, ...]) -> str:
    """A number, or the first and the last of several."""
    if isinstance(value, tuple):
        return f"{number_text(value[0])} … {number_text(value[-1])}"
    return number_text(value)


def number_text(value: float) -> str:
    """A number to three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.4g}"
