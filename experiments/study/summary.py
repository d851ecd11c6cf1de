"""What the rows of a study add up to: best rates, means over seeds, curves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from experiments.study.protocol import SCHEMES
from experiments.study.records import Records, Row


def names(records: Records, kind: str, width: int | None = None) -> list[str]:
    """The schemes that have rows, in the page's order."""
    where = {} if width is None else {"width": width}
    present = {row["scheme"] for row in records.find(kind=kind, **where)}
    return [name for name in SCHEMES if name in present]


def widths(records: Records, kind: str) -> list[int]:
    """The widths that have rows."""
    return sorted({row["width"] for row in records.find(kind=kind)})


def initial(records: Records, name: str, width: int, key: str) -> float | None:
    """A number measured before training, where there is one and it is finite."""
    rows = records.find(kind="initial", scheme=name, width=width)
    return rows[0][key] if rows else None


def mean_losses(records: Records, name: str, width: int) -> dict[float, float | None]:
    """Validation loss by rate, mean over seeds; None where a run diverged."""
    rows = records.find(kind="run", scheme=name, width=width)
    return {
        rate: _mean([row["validation_loss"] for row in rows if row["rate"] == rate])
        for rate in sorted({row["rate"] for row in rows})
    }


def best_rate(records: Records, name: str, width: int) -> float | None:
    """The rate with the least validation loss."""
    losses = mean_losses(records, name, width)
    finite = {rate: loss for rate, loss in losses.items() if loss is not None}
    return min(finite, key=lambda rate: finite[rate], default=None)


def best_runs(records: Records, name: str, width: int) -> list[Row]:
    """The runs of a scheme at its best rate, one a seed; none where all diverged."""
    rate = best_rate(records, name, width)
    return [] if rate is None else records.find(kind="run", scheme=name, width=width, rate=rate)


def best_losses(records: Records, width: int) -> dict[str, float]:
    """The loss of each scheme at its best rate, mean over seeds."""
    runs = {name: best_runs(records, name, width) for name in names(records, "run", width)}
    return {
        name: fmean(row["validation_loss"] for row in rows) for name, rows in runs.items() if rows
    }


def spread(rows: Sequence[Row]) -> float | None:
    """Largest minus smallest validation loss over seeds, where there are several."""
    losses = [row["validation_loss"] for row in rows]
    return max(losses) - min(losses) if len(losses) > 1 else None


def mean_curve(rows: Sequence[Row], key: str) -> np.ndarray:
    """A curve of the runs, mean over seeds, one number a step."""
    return np.array([row[key] for row in rows], dtype=float).mean(axis=0)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return fmean(finite) if len(finite) == len(values) else None
