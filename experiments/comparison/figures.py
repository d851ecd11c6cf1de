"""The comparison as a figure: loss against rate, a panel a task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from experiments.comparison.catalogue import Task
from experiments.comparison.presets import Preset
from experiments.comparison.summary import by_rate
from experiments.comparison.training import INITIALIZATIONS
from experiments.study.records import Records

COLUMNS = 5


def write(preset: Preset, tasks: Mapping[str, Task], records: Records, out: Path) -> list[Path]:
    """Draw every task that has rows; the file, or none."""
    curves = {
        name: {key: by_rate(preset, records, name, key) for key in INITIALIZATIONS}
        for name in tasks
    }
    drawn = {name: by_key for name, by_key in curves.items() if any(by_key.values())}
    if not drawn:
        return []
    columns = min(COLUMNS, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    size = (max(4.0, 2.8 * columns), 2.6 * rows + 0.6)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for ax, (name, by_key) in zip(panels, drawn.items(), strict=False):
        ax.set_title(tasks[name].title, fontsize=9)
        ax.set_xscale("log")
        ax.tick_params(labelsize=8)
        for number, (key, losses) in enumerate(by_key.items()):
            # A diverged seed has no place on the axis: its rate is left out of the line.
            kept = [one for one in losses if math.isfinite(one.mean)]
            at = [one.rate for one in kept]
            color = f"C{number}"
            ax.plot(at, [one.mean for one in kept], "o-", ms=3, color=color, label=key)
            low, high = [min(one.final) for one in kept], [max(one.final) for one in kept]
            ax.fill_between(at, low, high, color=color, alpha=0.2, lw=0)
    for ax in list(figure.axes)[len(drawn) :]:
        ax.remove()
    handles, _ = figure.axes[0].get_legend_handles_labels()
    place = {"loc": "outside upper center", "ncols": 3 if columns > 1 else 1, "fontsize": 9}
    figure.legend(handles, INITIALIZATIONS.values(), **place)
    figure.supxlabel("learning rate", fontsize=9)
    figure.supylabel(f"loss after {preset.budget.steps} steps", fontsize=9)
    path = out / "comparison.png"
    figure.savefig(path)
    return [path]
