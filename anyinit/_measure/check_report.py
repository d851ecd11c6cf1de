"""What the table of a check says, before any layout."""

from __future__ import annotations

from anyinit._measure.check import Check, MeasuredRow, Verdict
from anyinit._report.collapse import collapse
from anyinit._report.report import Report, Section, finding_items

_COLUMNS = ("place", "site", "predicted", "measured", "±", "batch", "width", "draw", "verdict")
_NUMERIC = ("predicted", "measured", "±", "batch", "width", "draw")


def check_report(check: Check) -> Report:
    """Collect what the table of a check says.

    >>> check_report(Check(())).title
    'anyinit check: 0 places measured, 0 not as predicted'

    Arguments:
        check: the check.

    Returns:
        Rows and sentences; the sampling error is split into what comes from the number of
        examples, from the number of features, and from one draw of the weights before.
    """
    off = [row for row in check.rows if row.verdict is not Verdict.HEALTHY]
    verdicts = dict.fromkeys(row.verdict for row in off)
    sections = [
        Section(
            "Not as predicted",
            tuple(
                (
                    verdict.value,
                    tuple(
                        name
                        for name, _ in collapse(
                            dict.fromkeys(
                                (row.path, row.place) for row in off if row.verdict is verdict
                            )
                        )
                    ),
                )
                for verdict in verdicts
            ),
        ),
        Section("Findings", finding_items(check.findings)),
    ]
    places = len(check.rows)
    return Report(
        f"anyinit check: {places} {'place' if places == 1 else 'places'} measured, "
        f"{len(off)} not as predicted",
        tuple(_cells(row) for row in check.rows),
        tuple(section for section in sections if section.items),
        _COLUMNS,
        _NUMERIC,
    )


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    predicted = "?" if row.predicted is None else f"{row.predicted:.3g}"
    return (
        row.path,
        f"{row.site}  {row.where}".rstrip(),
        f"{'≤ ' if row.at_most else ''}{predicted}",
        f"{row.measured:.3g}",
        f"{row.error:.1%}",
        "?" if row.batch_error is None else f"{row.batch_error:.1%}",
        f"{row.width_error:.1%}",
        f"{row.draw_error:.1%}",
        row.verdict.name.lower().replace("_", " "),
    )
