"""What the rows of a task add up to: the best rate, the spread over seeds, and who is ahead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from experiments.comparison.presets import Preset
from experiments.comparison.training import INITIALIZATIONS
from experiments.study.records import Records, Row


@dataclasses.dataclass(frozen=True)
class Losses:
    """Losses of one initialization at one rate, a seed each.

    Arguments:
        rate: the learning rate.
        initial: before training.
        final: after training; infinite where it diverged.
    """

    rate: float
    initial: tuple[float, ...]
    final: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean loss after training."""
        return sum(self.final) / len(self.final)

    @property
    def spread(self) -> float:
        """Largest less smallest loss after training; 0 for one seed."""
        return max(self.final) - min(self.final) if math.isfinite(self.mean) else math.inf


@dataclasses.dataclass(frozen=True)
class Best:
    """An initialization of a task at the rate that ends best.

    Arguments:
        at: the losses there.
        is_edge: whether a rate beyond the sweep might be better still.
    """

    at: Losses
    is_edge: bool


def by_rate(preset: Preset, records: Records, task: str, name: str) -> list[Losses]:
    """The losses of an initialization at every rate of which all seeds are trained."""
    found = []
    for rate in sorted(preset.rates):
        identity = {"kind": "run", "task": task, "scheme": name, "rate": rate}
        width = preset.sizes.width
        by_seed = {row["seed"]: row for row in records.find(**identity, width=width)}
        if by_seed.keys() >= set(preset.seeds):
            rows = [by_seed[seed] for seed in preset.seeds]
            found.append(Losses(rate, _all(rows, "initial_loss"), _all(rows, "loss")))
    return found


def best(preset: Preset, records: Records, task: str) -> dict[str, Best]:
    """Every initialization at its best rate; nothing of a task that is not trained wholly."""
    found = {}
    for name in INITIALIZATIONS:
        rates = by_rate(preset, records, task, name)
        if len(rates) < len(preset.rates):
            return {}
        chosen = min(rates, key=lambda losses: losses.mean)
        is_edge = len(rates) > 1 and chosen in (rates[0], rates[-1])
        found[name] = Best(chosen, is_edge)
    return found


def verdict(found: dict[str, Best]) -> str:
    """Who ends lower than Flax's default, beyond the spread over seeds, in a sentence."""
    default = found["default"].at
    parts = [
        _against(INITIALIZATIONS[name], found[name].at, default)
        for name in INITIALIZATIONS
        if name != "default"
    ]
    edges = [INITIALIZATIONS[name] for name, one in found.items() if one.is_edge]
    note = f" (best at the end of the sweep: {', '.join(edges)})" if edges else ""
    return "; ".join(parts) + note + "."


def _against(title: str, ours: Losses, default: Losses) -> str:
    if not math.isfinite(default.mean) and not math.isfinite(ours.mean):
        return f"{title} and the default both diverge at every rate"
    if not math.isfinite(default.mean):
        return f"{title} wins: the default diverges at every rate"
    if not math.isfinite(ours.mean):
        return f"the default wins: {title} diverges at every rate"
    ahead = default.mean - ours.mean
    spread = max(ours.spread, default.spread)
    if len(ours.final) == 1:
        return f"{title} ends {_apart(ahead)} the default (one seed, no spread)"
    if abs(ahead) <= spread:
        return (
            f"{title} and the default cannot be told apart "
            f"({_apart(ahead)} it, spread {spread:.3f})"
        )
    if ahead > 0:
        return f"{title} wins by {ahead:.3f} (spread {spread:.3f})"
    return f"the default wins over {title} by {-ahead:.3f} (spread {spread:.3f})"


def _apart(ahead: float) -> str:
    return f"{abs(ahead):.3f} {'below' if ahead >= 0 else 'above'}"


def _all(rows: Sequence[Row], key: str) -> tuple[float, ...]:
    """Values by seed; null, which is how the file has NaN, counts as infinite."""
    return tuple(math.inf if row[key] is None else row[key] for row in rows)
