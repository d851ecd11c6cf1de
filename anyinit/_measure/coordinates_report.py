"""What a coordinate check has found: records, spreads, a table and a figure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from anyinit._report.render import to_text
from anyinit._report.report import Report, Section

# A change of less than this part of the signal is rounding.
_NOTHING = 1e-12

# Spreads up to this say that widths are alike: what a draw or two scatters by.
ALIKE = 2.0


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """One site of one width at one step.

    Arguments:
        width: the width.
        seed: the draw of the parameters.
        step: optimizer steps taken; 0 before the first.
        site: the weights and what acts on their product, or ``"output"``.
        moment: second moment E[x²] of what is computed there.
        change: second moment E[(x − x₀)²] of what the steps have changed.
    """

    width: int
    seed: int
    step: int
    site: str
    moment: float
    change: float


@dataclasses.dataclass(frozen=True, repr=False)
class CoordinateCheck:
    """What ``coordinate_check`` returns; ``print(check)`` shows it as a table.

    >>> rows = [Coordinate(w, 0, s, "output", 1.0, s * w / 64) for w in (64, 256) for s in (0, 1)]
    >>> check = CoordinateCheck(tuple(rows))
    >>> check.spread("output", step=0), check.spread("output", step=1)
    (1.0, 4.0)

    Arguments:
        records: tidy: one for each site, width, seed and step.
    """

    records: tuple[Coordinate, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, in the order of computation."""
        return tuple(dict.fromkeys(record.site for record in self.records))

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths, as they were given."""
        return tuple(dict.fromkeys(record.width for record in self.records))

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return max(record.step for record in self.records)

    def at(self, site: str, step: int) -> tuple[float, ...]:
        """Second moment by width: of the site at step 0, of its change after later steps.

        Arguments:
            site: one of ``sites``.
            step: 0 … ``steps``.

        Returns:
            One number a width, the mean over the seeds.

        Raises:
            KeyError: there is no such site or step.
        """
        by_width: dict[int, list[float]] = {width: [] for width in self.widths}
        for record in self.records:
            if (record.site, record.step) == (site, step):
                by_width[record.width].append(record.moment if step == 0 else record.change)
        if not all(by_width.values()):
            raise KeyError(f"no record of {site!r} at step {step}; sites are {list(self.sites)}")
        return tuple(sum(found) / len(found) for found in by_width.values())

    def spread(self, site: str, step: int) -> float:
        """Largest over smallest of ``at``: 1 where all widths are alike.

        Arguments:
            site: one of ``sites``.
            step: 0 … ``steps``.
        """
        found = [value if value > _NOTHING else 0.0 for value in self.at(site, step)]
        if max(found) == 0:
            return 1.0
        return max(found) / min(found) if min(found) > 0 else math.inf

    def plot(self) -> Any:
        """Draw second moments against width, before the first step and after the last.

        Returns:
            A ``matplotlib.figure.Figure``, which a notebook shows and ``savefig`` saves.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from anyinit._report.figures import coordinate_figure

        return coordinate_figure(self)

    def __str__(self) -> str:
        return to_text(_report(self))

    def __repr__(self) -> str:
        return f"CoordinateCheck({len(self.sites)} sites, widths {list(self.widths)})"


def _report(check: CoordinateCheck) -> Report:
    last = check.steps
    widths = tuple(f"d={width}" for width in check.widths)
    columns = ("site", *widths, "spread", *(f"Δ {width}" for width in widths), "Δ spread")
    rows = tuple(
        (site, *_cells(check, site, 0), *_cells(check, site, last)) for site in check.sites
    )
    count = f"{last} step" if last == 1 else f"{last} steps"
    return Report(
        f"anyinit coordinate check: E[x²] of every site before the first step, and E[(x − x₀)²] "
        f"after {count} (Δ)",
        rows,
        (Section("What good looks like", ((_GOOD, ()),)), *_unlike(check)),
        columns,
        columns[1:],
    )


_GOOD = (
    f"Spreads (largest over smallest of the widths) near 1, up to {ALIKE:g} or so: the signal "
    "starts alike at every width, and the steps change it alike, so a learning rate found at one "
    "width serves the others. ↑ grows with width: scale the weight, or its learning rate, down as "
    "the model grows. ↓ falls: wide models hardly move there; raise its rate."
)


def _cells(check: CoordinateCheck, site: str, step: int) -> tuple[str, ...]:
    found = check.at(site, step)
    return *(f"{value:.3g}" for value in found), _spread(check, site, step)


def _spread(check: CoordinateCheck, site: str, step: int) -> str:
    spread = check.spread(site, step)
    if spread <= ALIKE:
        return f"{spread:.2g}"
    found = dict(zip(check.widths, check.at(site, step), strict=True))
    grows = found[max(found)] > found[min(found)]
    return f"{spread:.3g} {'↑' if grows else '↓'}"


def _unlike(check: CoordinateCheck) -> Sequence[Section]:
    """The sites that are not alike, at the start and after the steps."""
    sentences = (
        ("Unlike at the start", 0),
        ("Unlike in what the steps change", check.steps),
    )
    found = [
        (sentence, tuple(site for site in check.sites if check.spread(site, step) > ALIKE))
        for sentence, step in sentences
    ]
    items = tuple((f"{sentence}:", sites) for sentence, sites in found if sites)
    return (Section("Sites that depend on the width", items),) if items else ()
