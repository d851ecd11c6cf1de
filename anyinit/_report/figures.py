"""Figures, drawn with matplotlib, which is imported when the first one is asked for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from anyinit._measure.check import Check
from anyinit._plan.plan import Plan
from anyinit._plan.watched import Place

if TYPE_CHECKING:
    from anyinit._measure.coordinates_report import CoordinateCheck

# Room for the names of sites beside the panels.
_HEIGHT, _PANEL = 4.2, 4.6


def new_figure(width: float, height: float) -> Any:
    """An empty figure, outside pyplot: nothing global changes.

    Arguments:
        width: in inches.
        height: in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib, which is not installed: pip install 'anyinit-jax[plot]'."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def coordinate_figure(check: CoordinateCheck) -> Any:
    """Second moments against width: a panel before the first step, and one after the last.

    Arguments:
        check: the coordinate check.
    """
    figure = new_figure(2 * _PANEL + 3.2, _HEIGHT)
    start, change = figure.subplots(1, 2)
    last = check.steps
    panels = (
        (start, 0, "before the first step", "E[x²]"),
        (change, last, f"change after {last} step{'s' * (last > 1)}", "E[(x − x₀)²]"),
    )
    for axes, step, title, label in panels:
        for number, site in enumerate(check.sites):
            heavy = site.startswith("output")
            color = "black" if heavy else f"C{number % 10}"
            axes.plot(
                check.widths,
                check.at(site, step),
                label=site,
                linewidth=2.2 if heavy else 1.1,
                zorder=3 if heavy else 2,
                markersize=4,
                marker="os^Dv"[number // 10 % 5],
                color=color,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(check.widths, [str(width) for width in check.widths])
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel("width")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        _at_least_two_decades(axes)
    handles, labels = start.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small", frameon=False)
    return figure


@dataclasses.dataclass(frozen=True)
class _Point:
    """One place of a model: where it is drawn, as what, and its second moments."""

    depth: int
    kind: str
    path: str
    predicted: float | None
    at_most: bool
    measured: float | None
    error: float


# Colour, marker and label of each kind of place.
_KINDS = {
    "stream": ("C0", "o", "residual stream"),
    "branch": ("C1", "s", "branch, as it is added"),
    "site": ("0.45", "D", "other sites"),
    "output": ("black", "*", "output"),
}

# As many places as have room for their names.
_NAMED = 40


def plan_figure(plan: Plan, check: Check | None) -> Any:
    """Second moment against depth, predicted and measured.

    Arguments:
        plan: the plan.
        check: a measurement of the same model, or ``None``.
    """
    points = _planned(plan) if check is None else _checked(check)
    figure = new_figure(min(max(6.0, 0.32 * len(points) + 3), 16), 4.8)
    axes = figure.subplots()
    axes.axhline(1.0, color="0.8", linewidth=1, zorder=0)
    for kind, (color, marker, label) in _KINDS.items():
        chosen = [point for point in points if point.kind == kind]
        if chosen:
            _draw(axes, chosen, color, marker, label)
    axes.set_yscale("log")
    axes.set_ylabel("second moment E[x²]")
    axes.set_xlabel("place in the model, in the order of computation")
    if len(points) <= _NAMED:
        names = [_short(point.path) for point in points]
        axes.set_xticks([point.depth for point in points], names, rotation=90, fontsize="x-small")
        axes.set_xlabel("")
    axes.margins(x=0.03)
    _at_least_two_decades(axes)
    if points:
        figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return figure


def _short(path: str) -> str:
    """A path with its ends, which tell the block and the weight."""
    return path if len(path) <= 32 else f"{path[:12]}…{path[-19:]}"


def _draw(axes: Any, points: list[_Point], color: str, marker: str, label: str) -> None:
    """Predictions as full marks, bounds as triangles; measurements as open ones with errors."""
    large = 11 if marker == "*" else 5
    seen = [point for point in points if point.measured]
    known = [point for point in points if point.predicted]
    exact = [point for point in known if not point.at_most]
    bounds = [point for point in known if point.at_most]
    line = "-" if marker == "o" else "none"
    axes.plot(
        [point.depth for point in known],
        [point.predicted for point in known],
        linestyle=line,
        color=color,
        linewidth=1.2,
    )
    for chosen, shape, words in ((exact, marker, "predicted"), (bounds, "v", "predicted, at most")):
        if chosen:
            axes.plot(
                [point.depth for point in chosen],
                [point.predicted for point in chosen],
                linestyle="none",
                marker=shape,
                markersize=large,
                color=color,
                alpha=0.55 if seen else 1.0,
                label=f"{label}, {words}",
            )
    if seen:
        axes.errorbar(
            [point.depth for point in seen],
            [point.measured for point in seen],
            yerr=[(point.measured or 0.0) * min(point.error, 0.9) for point in seen],
            linestyle="none",
            marker=marker,
            markersize=large + 3,
            markerfacecolor="none",
            color=color,
            elinewidth=0.8,
            label=f"{label}, measured",
        )


def _kind(place: Place, site: str) -> str:
    if place is Place.SITE:
        return "branch" if site == "residual stream" else "site"
    return "stream" if place is Place.STREAM else "output"


def _planned(plan: Plan) -> list[_Point]:
    measured = {row.name: row.moment for row in plan.measured}
    return [
        _Point(
            depth,
            _kind(row.place, row.site),
            row.path,
            row.moment,
            row.at_most,
            measured.get(row.name),
            0.0,
        )
        for depth, row in enumerate(plan.moments)
    ]


def _checked(check: Check) -> list[_Point]:
    return [
        _Point(
            depth,
            _kind(row.place, row.site),
            row.path,
            row.predicted,
            row.at_most,
            row.measured,
            row.error,
        )
        for depth, row in enumerate(check.rows)
    ]


def _at_least_two_decades(axes: Any) -> None:
    """So that lines which are flat look flat."""
    low, high = axes.get_ylim()
    if high < 100 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 10, middle * 10)
