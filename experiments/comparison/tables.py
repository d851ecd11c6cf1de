"""The comparison as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.comparison.catalogue import Task
from experiments.comparison.presets import Preset
from experiments.comparison.summary import best, verdict
from experiments.comparison.training import INITIALIZATIONS
from experiments.study.records import Records
from experiments.study.tables import grid

HEAD = ["task", "initialization", "initial loss", "loss", "spread", "best rate"]


def markdown(preset: Preset, tasks: Mapping[str, Task], records: Records) -> str:
    """A table with three lines a task, a sentence a task, and what is not trained yet."""
    lines, sentences, missing = [], [], []
    for name, task in tasks.items():
        found = best(preset, records, name)
        if not found:
            missing.append(task.title)
            continue
        for number, (key, one) in enumerate(found.items()):
            spread = one.at.spread
            lines.append(
                [
                    task.title if number == 0 else "",
                    INITIALIZATIONS[key],
                    _number(_mean(one.at.initial)),
                    _number(one.at.mean),
                    f"{spread:.3f}" if math.isfinite(spread) else "-",
                    f"{one.at.rate:g}" + ("*" if one.is_edge else ""),
                ]
            )
        sentences.append(f"- **{task.title}**: {verdict(found)}")
    budget = preset.budget
    about = (
        f"Mean held-out loss in nats before and after {budget.steps} steps, at the best of "
        f"{len(preset.rates)} rates; {len(preset.seeds)} seeds, "
        "whose largest loss less the smallest is the spread. A star marks a rate at an end of the "
        "sweep."
    )
    parts = [about, grid(HEAD, lines), "\n".join(sentences)] if lines else []
    if missing:
        parts.append(f"Not trained wholly: {'; '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "diverged"
