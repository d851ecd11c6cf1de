"""What the report of a plan says: its rows and sentences, before any layout."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from anyinit._findings import Finding, Kind
from anyinit._plan import Plan, WeightPlan

COLUMNS = ("weight", "shape", "roles", "site", "fan", "E[x²] in", "c", "target", "std", "m")
NUMERIC = ("fan", "E[x²] in", "c", "target", "m")

# Numbers that differ by less are shown as one.
_NEARLY = 0.05

_Rest = TypeVar("_Rest", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading with items under it, each a sentence followed by names (or by none)."""

    title: str
    items: tuple[tuple[str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a report shows.

    Arguments:
        title: one line.
        rows: cells of the table, under ``columns``.
        sections: what follows the table.
        columns: heads of the table.
        numeric: those of them that hold numbers.
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    sections: tuple[Section, ...]
    columns: tuple[str, ...] = COLUMNS
    numeric: tuple[str, ...] = NUMERIC


def report_of(plan: Plan) -> Report:
    """Collect what the report of a plan says.

    >>> report_of(Plan(weights=())).title
    'anyinit plan: 0 weights planned, 0 parameters left alone, 0 findings'

    Arguments:
        plan: the plan.

    Returns:
        Rows and sentences. What is the same for many layers appears once, its layer numbers
        collapsed as in ``h_{0…11}``; ``Plan.to_dict`` stays complete.
    """
    measured = "; moments measured on a batch" if plan.measured else ""
    title = (
        f"anyinit plan: {_count(len(plan.weights), 'weight')} planned, "
        f"{_count(len(plan.left_alone), 'parameter')} left alone, "
        f"{_count(len(plan.findings), 'finding')}{measured}"
    )
    rows = collapse(zip(map(_name, plan.weights), _rows(plan.weights), strict=True))
    sections = [_left_alone(plan), _findings(plan), _start(plan), _stability(plan)]
    return Report(
        title,
        tuple((name, *cells) for name, cells in rows),
        tuple(section for section in sections if section.items),
    )


def collapse(named: Iterable[tuple[str, _Rest]]) -> list[tuple[str, _Rest]]:
    """Merge entries that are equal up to a number in their names.

    >>> collapse([("h_0/up", 1), ("h_1/up", 1), ("h_2/up", 1), ("h_3/up", 2)])
    [('h_{0…2}/up', 1), ('h_3/up', 2)]

    Arguments:
        named: names, each with anything hashable that must be equal for names to be merged.

    Returns:
        The merged entries in the order of their first members.
    """
    # Splitting at numbers puts them at the odd places; the outermost number is merged first.
    entries = [(tuple(re.split(r"(\d+)", name)), rest) for name, rest in named]
    for place in range(1, max((len(parts) for parts, _ in entries), default=0), 2):
        merged: dict[Hashable, tuple[tuple[str, ...], list[str], _Rest]] = {}
        for position, (parts, rest) in enumerate(entries):
            if place < len(parts):
                key: Hashable = (parts[:place], parts[place + 1 :], rest)
                merged.setdefault(key, (parts, [], rest))[1].append(parts[place])
            else:
                merged[position] = (parts, [], rest)
        entries = [
            ((*parts[:place], _numbers(found), *parts[place + 1 :]), rest)
            if found
            else (parts, rest)
            for parts, found, rest in merged.values()
        ]
    return [("".join(parts), rest) for parts, rest in entries]


def _numbers(found: list[str]) -> str:
    """``{0…11}`` for consecutive numbers, ``{0,2,5…7}`` otherwise."""
    if len(set(found)) == 1:
        return found[0]
    runs: list[list[int]] = []
    for number in sorted({int(text) for text in found}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = (str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs)
    return "{" + ",".join(spans) + "}"


def _name(row: WeightPlan) -> str:
    return " = ".join((row.path, *row.aliases))


def _rows(weights: Sequence[WeightPlan]) -> list[tuple[str, ...]]:
    """The cells of each weight, those of layers that are nearly equal rounded to the same text.

    Layers of one kind differ in the third digit. Apart, they would hide the rows that matter.
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
    return cells


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
    texts = {"?" if value is None else _range(value) for value in column}
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


def _left_alone(plan: Plan) -> Section:
    by_reason: dict[str, list[str]] = {}
    for left in plan.left_alone:
        by_reason.setdefault(left.reason.value, []).append(left.path)
    return Section(
        "Left alone",
        tuple(
            (sentence, tuple(name for name, _ in collapse((path, None) for path in paths)))
            for sentence, paths in by_reason.items()
        ),
    )


def _findings(plan: Plan) -> Section:
    entries: Iterable[tuple[str, tuple[Kind, str, str]]] = (
        (finding.subject, (finding.kind, finding.where, finding.detail))
        for finding in plan.findings
    )
    sentences = []
    for subject, (kind, where, detail) in collapse(entries):
        message = Finding(kind, subject, where, detail).message
        sentences.append((f"{message} [{where}]" if where else message, ()))
    return Section("Findings", tuple(sentences))


def _start(plan: Plan) -> Section:
    """What the first training steps will show."""
    sentences = []
    if plan.expected_loss is not None and plan.vocabulary and plan.logits_moment is not None:
        others = math.log(plan.vocabulary) + plan.logits_moment / 2
        own = plan.expected_loss - others
        bound = any(row.at_most and row.site == "output" for row in plan.weights)
        start = f"Initial cross-entropy: {'at most ' * bound}{plan.expected_loss:.2f} nats = "
        start += f"{others:.2f} + {own:.2f}: " if own >= 0.005 else ""
        sentences.append(
            f"{start}ln V + E[logits²]/2 = ln {plan.vocabulary} + {_number(plan.logits_moment)}/2 "
            "(V counts every column that the softmax sees, padding included)"
            + (
                ", and what the logit of the token that was looked up adds."
                if own >= 0.005
                else "."
            )
        )
    sentences += [_lookup(row) for row in plan.weights if row.is_tied]
    return Section("At the start", tuple((sentence, ()) for sentence in sentences if sentence))


def _stability(plan: Plan) -> Section:
    """What becomes of an error in the signal's scale, and which functions make it grow or fade."""
    title, found = "Stability over depth", plan.stability
    if found is None:
        return Section(title, ())
    layers = _count(found.depth, "nonlinear layer")
    error = "An error in the signal's second moment"
    if found.depth == 0:
        sentence = f"{error} is taken off by a norm after every nonlinearity."
    else:
        sentence = f"{error} changes by a factor of {_number(found.growth)} over {layers}"
        sentence += f": {found.verdict.value}."
        if found.tenfold_depth is not None:
            sentence += f" It grows tenfold over {found.tenfold_depth:.2g} such layers."
    slopes = dict.fromkeys(
        f"{each.function} {_number(each.slope)}" for each in found.nonlinearities
    )
    listed = f"Slope of log E[f(z)²] against log E[z²]: {', '.join(slopes)}." if slopes else ""
    return Section(title, tuple((text, ()) for text in (sentence, listed) if text))


def _lookup(row: WeightPlan) -> str:
    """What the lookup of a tied table delivers, and what that does to the first loss."""
    parts = []
    if row.arrival is not None:
        parts.append(f"its lookup arrives with E[x²] = {_number(row.arrival)}")
    if row.own_token_logit is not None:
        parts.append(
            f"the logit of the token that was looked up is about {_number(row.own_token_logit)}"
        )
    if not parts:
        return ""
    sentence = f"Tied table {row.path}: {', and '.join(parts)}."
    root = math.sqrt(row.fan)
    if row.own_token_logit is not None and row.own_token_logit > max(root / 2, 2):
        sentence += (
            f" So near √d = {_number(root)} it lifts the first loss, and is unlearned in some "
            "25 steps."
        )
    return sentence


def _range(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        return f"{_number(value[0])} … {_number(value[-1])}"
    return _number(value)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.4g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
