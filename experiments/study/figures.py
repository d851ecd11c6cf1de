"""The study's figures, as PNG files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study.protocol import SCHEMES, Preset
from experiments.study.records import Records
from experiments.study.tables import best_rate, mean_losses, names, widths

COLORS = {name: f"C{number % 10}" for number, name in enumerate(SCHEMES)}


def write(preset: Preset, records: Records, out: Path) -> list[Path]:
    """Draw everything that has rows; the files that were written."""
    files = []
    if names(records, "initial"):
        files.append(_save(initial_loss(preset, records), out / "initial_loss.png"))
    for width in widths(records, "run"):
        panels = (training_curves, final_loss, rate_curves, gradient_ratio)
        figure = Figure(figsize=(12, 8), layout="constrained")
        axes = figure.subplots(2, 2)
        for panel, ax in zip(panels, axes.flat, strict=True):
            panel(ax, records, width)
        figure.suptitle(f"d = {width}, V = {preset.protocol.vocab:,}, {preset.data}")
        files.append(_save(figure, out / f"training_d{width}.png"))
    return files


def initial_loss(preset: Preset, records: Records) -> Figure:
    """Loss before training against width, with ln V."""
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    ax = figure.subplots()
    for name in names(records, "initial"):
        rows = sorted(records.find(kind="initial", scheme=name), key=lambda row: row["width"])
        at, losses = [row["width"] for row in rows], [row["loss"] or math.nan for row in rows]
        ax.plot(at, losses, "o-", color=COLORS[name], label=f"{name}: {SCHEMES[name].says}")
    uniform = math.log(preset.protocol.vocab)
    ax.axhline(uniform, color="grey", linestyle=":", label="ln V")
    at = widths(records, "initial")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(at, [str(width) for width in at])
    ax.minorticks_off()
    _titles(ax, "Before training", "width d", "loss, nats")
    return figure


def training_curves(ax: Axes, records: Records, width: int) -> None:
    """Smoothed training loss of each scheme at its best rate."""
    last = []
    for name, rate in _best(records, width).items():
        losses = _mean_curve(records, name, width, rate, "losses")
        span = max(1, len(losses) // 30)
        smooth = np.convolve(losses, np.ones(span) / span, mode="valid")
        last.append(smooth[-1])
        ax.plot(np.arange(len(smooth)) + span / 2, smooth, color=COLORS[name], label=name)
    if last:  # A starts far above
        ax.set_ylim(min(last) * 0.95, min(last) * 2)
    _titles(ax, "Training, each scheme at its best rate", "step", "training loss, nats")


def final_loss(ax: Axes, records: Records, width: int) -> None:
    """Best validation loss of each scheme, every seed a dot."""
    best, means = _best(records, width), []
    for place, (name, rate) in enumerate(best.items()):
        losses = [
            row["validation_loss"]
            for row in records.find(kind="run", scheme=name, width=width, rate=rate)
        ]
        mean = sum(losses) / len(losses)
        means.append(mean)
        ax.bar(place, mean, color=COLORS[name], alpha=0.5)
        ax.plot([place] * len(losses), losses, "o", color=COLORS[name])
        ax.annotate(f"{mean:.2f}", (place, mean), ha="center", va="bottom")
    ax.set_xticks(range(len(best)), list(best))
    if means:
        ax.set_ylim(min(means) * 0.95, max(means) * 1.02)
    _titles(ax, "After training", "scheme", "validation loss, nats", legend=False)


def rate_curves(ax: Axes, records: Records, width: int) -> None:
    """Validation loss against learning rate."""
    for name in names(records, "run"):
        losses = mean_losses(records, name, width)
        values = [math.nan if loss is None else loss for loss in losses.values()]
        ax.plot(list(losses), values, "o-", color=COLORS[name], label=name)
    ax.set_xscale("log")
    _titles(ax, "Validation loss at each rate", "learning rate", "validation loss, nats")


def gradient_ratio(ax: Axes, records: Records, width: int) -> None:
    """How the tied table's gradient as input compares with that as output."""
    for name, rate in _best(records, width).items():
        if SCHEMES[name].tied:
            ratios = _mean_curve(records, name, width, rate, "ratios")
            ax.plot(np.arange(1, len(ratios) + 1), ratios, color=COLORS[name], label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    _titles(ax, "Tied table: gradient as input / as output", "step", "ratio of norms")


def _best(records: Records, width: int) -> dict[str, float]:
    rates = {name: best_rate(records, name, width) for name in names(records, "run")}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _mean_curve(records: Records, name: str, width: int, rate: float, key: str) -> np.ndarray:
    rows = records.find(kind="run", scheme=name, width=width, rate=rate)
    return np.asarray(np.array([row[key] for row in rows], dtype=float).mean(axis=0))


def _titles(ax: Axes, title: str, x: str, y: str, legend: bool = True) -> None:
    ax.set(title=title, xlabel=x, ylabel=y)
    if legend and ax.lines:
        ax.legend(fontsize="small")


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path
