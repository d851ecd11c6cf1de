"""The result of measuring a model on a batch: predicted against measured, row by row."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from anyinit._findings import Finding
from anyinit._plan.watched import Place as Place

# How far measured and predicted may be apart, as a part of the smaller.
TOLERANCE = 0.5

# What lies within as many sampling errors of what is allowed is not told from it.
_ERRORS = 3.0


class Verdict(enum.Enum):
    """How a measurement compares with its prediction; the sentence gives cause and cure."""

    HEALTHY = "The second moment is as predicted."
    LARGER = (
        "The second moment is larger than predicted. Either these weights are not scaled by this "
        "plan (apply plan.rescale), or an input or a factor that is computed from data is larger "
        'than assumed: pass input_moment=, or initialize with mode="empirical".'
    )
    SMALLER = (
        "The second moment is smaller than predicted. Either these weights are not scaled by this "
        "plan (apply plan.rescale), or an input or a factor that is computed from data is smaller "
        'than assumed: pass input_moment=, or initialize with mode="empirical".'
    )
    UNCERTAIN = (
        "The second moment is off, but by no more than what a batch, a width and a draw of this "
        "size scatter by: take a larger batch, a wider model or another draw, whichever adds most "
        "to the error, or allow for it by tolerance=."
    )
    SILENT = (
        "Only zeros arrive, although a signal is predicted: the batch leaves this part of the "
        "model inactive, or something before it has died."
    )
    NOT_FINITE = (
        "NaN or infinite numbers arrive: check the batch, and what is computed before this line."
    )
    NOT_MEASURED = (
        "There is no prediction to compare with, so nothing is known of this place: look for what "
        "the plan's findings say of it."
    )


@dataclasses.dataclass(frozen=True)
class MeasuredRow:
    """One place of a model, predicted and measured.

    Arguments:
        path: the weight whose site it is, ``"output"``, or the weights added to a stream.
        place: what kind of place it is.
        site: what acts there, as in a plan.
        where: ``file.py:line`` of it.
        predicted: second moment that the plan's scales predict, if they do; of a plan that was
            measured, what was measured then.
        measured: second moment on the batch.
        at_most: whether the prediction is an upper bound (fed by an attention average).
        batch_error: relative standard error for the finite number of examples; ``None`` for a
            batch of one.
        width_error: relative standard error for the finite number of features.
        draw_error: relative standard error that one draw of the weights before it passes on, since
            the last normalization.
        depth: position in the order of computation.
    """

    path: str
    place: Place
    site: str
    where: str
    predicted: float | None
    measured: float
    at_most: bool
    batch_error: float | None
    width_error: float
    draw_error: float
    depth: int

    @property
    def error(self) -> float:
        """Relative standard error of the measurement, all causes together."""
        return math.hypot(self.batch_error or 0.0, self.width_error, self.draw_error)

    @property
    def verdict(self) -> Verdict:
        """The verdict at the default tolerance."""
        return self.verdict_at(TOLERANCE)

    def verdict_at(self, tolerance: float) -> Verdict:
        """The verdict when measured and predicted may differ by a factor of 1 + tolerance."""
        if self.predicted is None or not math.isfinite(self.predicted):
            return Verdict.NOT_MEASURED
        if not math.isfinite(self.measured):
            return Verdict.NOT_FINITE
        if self.predicted <= 0:
            return Verdict.HEALTHY if self.measured <= 1e-12 else Verdict.LARGER
        if self.measured <= 0:
            return Verdict.SILENT
        ratio = self.measured / self.predicted
        if ratio <= 1 + tolerance and (self.at_most or ratio * (1 + tolerance) >= 1):
            return Verdict.HEALTHY
        distance = abs(math.log(ratio)) - math.log1p(tolerance)
        if distance < _ERRORS * self.error:
            return Verdict.UNCERTAIN
        return Verdict.LARGER if ratio > 1 else Verdict.SMALLER


class UnhealthyError(AssertionError):
    """A model does not compute what its plan predicts, or it could not be told."""

    # Tracebacks show the name under which it can be caught.
    __module__ = "anyinit"


@dataclasses.dataclass(frozen=True, repr=False)
class Check:
    """What ``measure`` returns; ``print(check)`` shows it as a table.

    Arguments:
        rows: sites of the weights, outputs and residual streams, in the order of computation.
        findings: what was assumed or is unusual.
    """

    rows: tuple[MeasuredRow, ...]
    findings: tuple[Finding, ...] = ()

    def assert_healthy(self, tolerance: float = TOLERANCE) -> None:
        """Raise unless every row was measured to be as predicted.

        >>> row = MeasuredRow("head/kernel", Place.OUTPUT, "output", "", 1.0, 9.0, False,
        ...                   0.01, 0.01, 0.0, 0)
        >>> Check((row,)).assert_healthy()
        Traceback (most recent call last):
        ...
        anyinit.UnhealthyError: 1 of 1 measured places are not as predicted (tolerance 0.5):
        ...

        Arguments:
            tolerance: how far measured and predicted second moments may be apart: within a factor
                of 1 + tolerance of each other.

        Raises:
            UnhealthyError: the message lists the places that are off, and those of which it
                cannot be told.
            ValueError: ``tolerance`` is no positive number, or nothing was measured.
        """
        if not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
            raise ValueError(
                f"tolerance={tolerance!r}: expected a positive finite number; 0.5 allows a factor "
                "of 1.5 between measured and predicted second moments."
            )
        if not self.rows:
            raise ValueError(
                "Nothing was measured: the model has no weight, output or stream that could be "
                "compared with a plan. Pass the model and the batch to measure."
            )
        off = [row for row in self.rows if row.verdict_at(tolerance) is not Verdict.HEALTHY]
        if not off:
            return
        lines = [
            f"{len(off)} of {len(self.rows)} measured places are not as predicted "
            f"(tolerance {tolerance:g}):"
        ]
        for verdict in Verdict:
            found = [row for row in off if row.verdict_at(tolerance) is verdict]
            if found:
                lines.append(f"  {verdict.value}")
                lines += [f"    {_line(row)}" for row in found]
        raise UnhealthyError("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """The rows and findings as dictionaries, lists, strings and numbers."""
        return {
            "rows": [
                {
                    **dataclasses.asdict(row),
                    "place": row.place.value,
                    "error": row.error,
                    "verdict": row.verdict.name,
                    "message": row.verdict.value,
                }
                for row in self.rows
            ],
            "findings": [
                {"kind": f.kind.name, "message": f.message, "where": f.where} for f in self.findings
            ],
        }

    def __str__(self) -> str:
        from anyinit._measure.check_report import check_report
        from anyinit._report.render import to_text

        return to_text(check_report(self))

    def _repr_html_(self) -> str:
        from anyinit._measure.check_report import check_report
        from anyinit._report.render import to_html

        return to_html(check_report(self))

    def __repr__(self) -> str:
        off = sum(row.verdict is not Verdict.HEALTHY for row in self.rows)
        return f"Check({len(self.rows)} places, {off} not as predicted)"


def _line(row: MeasuredRow) -> str:
    predicted = "nothing" if row.predicted is None else f"{row.predicted:.3g}"
    bound = "at most " if row.at_most else ""
    place = f"{row.site}  {row.where}".rstrip()
    return (
        f"{row.path} ({place}): E[x²] = {row.measured:.3g} ± {row.error:.0%}, predicted "
        f"{bound}{predicted}"
    )
