"""What the report of a plan says: its rows and sentences, before any layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from anyinit._findings import Finding, Kind
from anyinit._plan.plan import Plan, WeightPlan
from anyinit._report.collapse import collapse
from anyinit._report.table_rows import COLUMNS, NUMERIC, number_text, table_rows


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
    rows = collapse(table_rows(plan.weights))
    found = Section("Findings", finding_items(plan.findings))
    sections = [_left_alone(plan), found, _start(plan), _stability(plan)]
    return Report(
        title,
        tuple((name, *cells) for name, cells in rows),
        tuple(section for section in sections if section.items),
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


def finding_items(findings: Iterable[Finding]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each finding as a sentence; of several that differ by their subject, one with their names.

    Arguments:
        findings: of a plan or a check.
    """
    entries = collapse((each.subject, (each.kind, each.where, each.detail)) for each in findings)
    groups: dict[tuple[tuple[Kind, str, str], str], list[str]] = {}
    for subject, about in entries:
        together = about[0].value.startswith("{subject}")
        groups.setdefault((about, "" if together else subject), []).append(subject)
    items = []
    for ((kind, where, detail), _), names in groups.items():
        subject = names[0] if len(names) == 1 else "Each of these"
        message = Finding(kind, subject, where, detail).message
        sentence = f"{message} [{where}]" if where else message
        items.append((sentence, tuple(names) if len(names) > 1 else ()))
    return tuple(items)


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
            f"{start}ln V + E[logits²]/2 = ln {plan.vocabulary} + "
            f"{number_text(plan.logits_moment)}/2 (V counts every column that the softmax sees, "
            "padding included)"
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
        sentence = f"{error} is taken off by a norm after every nonlinearity, "
        sentence += "or by a weight that starts at zero."
    else:
        sentence = f"{error} changes by a factor of {number_text(found.growth)} over {layers}"
        sentence += f": {found.verdict.value}."
        if found.tenfold_depth is not None:
            sentence += f" It grows tenfold over {found.tenfold_depth:.2g} such layers."
    slopes = dict.fromkeys(
        f"{each.function} {number_text(each.slope)}" for each in found.nonlinearities
    )
    listed = f"Slope of log E[f(z)²] against log E[z²]: {', '.join(slopes)}." if slopes else ""
    return Section(title, tuple((text, ()) for text in (sentence, listed) if text))


def _lookup(row: WeightPlan) -> str:
    """What the lookup of a tied table delivers, and what that does to the first loss."""
    parts = []
    if row.arrival is not None:
        parts.append(f"its lookup arrives with E[x²] = {number_text(row.arrival)}")
    if row.own_token_logit is not None:
        parts.append(
            f"the logit of the token that was looked up is about {number_text(row.own_token_logit)}"
        )
    if not parts:
        return ""
    sentence = f"Tied table {row.path}: {', and '.join(parts)}."
    root = math.sqrt(row.fan)
    if row.own_token_logit is not None and row.own_token_logit > max(root / 2, 2):
        sentence += (
            f" So near √d = {number_text(root)} it lifts the first loss, and is unlearned in some "
            "25 steps."
        )
    return sentence


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
