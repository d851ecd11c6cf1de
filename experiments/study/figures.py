"""The study's figures, each a PNG file that can be used as it is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study.presets import Preset
from experiments.study.protocol import SCHEMES
from experiments.study.records import Records
from experiments.study.summary import (
    best_losses,
    best_runs,
    initial,
    mean_curve,
    mean_losses,
    names,
    widths,
)

COLORS = {name: f"C{number % 10}" for number, name in enumerate(SCHEMES)}
STYLES = {name: "--" if scheme.library else "-" for name, scheme in SCHEMES.items()}


def write(preset: Preset, records: Records, out: Path) -> list[Path]:
    """Draw everything that has rows; the files that were written."""
    files = []
    if names(records, "initial"):
        files.append(_save(_one(initial_loss, records, preset), out / "initial_loss.png"))
    panels = {
        "validation_loss": rate_curves,
        "final_loss": final_loss,
        "gradient_ratio": gradient_ratio,
        "training": training_curves,
    }
    for width in widths(records, "run"):
        for name, panel in panels.items():
            figure = _one(panel, records, preset, width)
            files.append(_save(figure, out / f"{name}_d{width}.png"))
    return files


def initial_loss(ax: Axes, records: Records, preset: Preset) -> None:
    """Loss before training against width, with ln V."""
    at = widths(records, "initial")
    for name in names(records, "initial"):
        losses = [initial(records, name, width, "loss") or math.nan for width in at]
        ax.plot(at, losses, "o", ls=STYLES[name], color=COLORS[name], label=_label(name))
    uniform = math.log(preset.protocol.vocab)
    ax.axhline(uniform, color="grey", linestyle=":", label="ln V")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(at, [str(width) for width in at])
    ax.minorticks_off()
    _titles(ax, "Before training", "width d", "loss, nats")


def rate_curves(ax: Axes, records: Records, width: int) -> None:
    """Validation loss against learning rate."""
    for name in names(records, "run", width):
        losses = mean_losses(records, name, width)
        values = [math.nan if loss is None else loss for loss in losses.values()]
        style = {"ls": STYLES[name], "color": COLORS[name], "label": _label(name)}
        ax.plot(list(losses), values, "o", **style)
    ax.set_xscale("log")
    _titles(ax, f"Validation loss at each rate, d = {width}", "learning rate", "loss, nats")


def final_loss(ax: Axes, records: Records, width: int) -> None:
    """Best validation loss of each scheme, every seed a dot."""
    best = best_losses(records, width)
    for place, (name, mean) in enumerate(best.items()):
        losses = [row["validation_loss"] for row in best_runs(records, name, width)]
        ax.bar(place, mean, color=COLORS[name], alpha=0.5)
        ax.plot([place] * len(losses), losses, "o", color=COLORS[name])
        ax.annotate(
            f"{mean:.2f}", (place, max(losses)), (0, 5), textcoords="offset points", ha="center"
        )
    ax.set_xticks(range(len(best)), list(best), rotation=30 if len(best) > 7 else 0)
    if best:
        ax.set_ylim(min(best.values()) * 0.95, max(best.values()) * 1.03)
    title = f"Validation loss at each scheme's best rate, d = {width}; a dot a seed"
    _titles(ax, title, "scheme", "loss, nats", legend=False)


def gradient_ratio(ax: Axes, records: Records, width: int) -> None:
    """How the tied table's gradient as input compares with that as output."""
    for name in best_losses(records, width):
        if SCHEMES[name].tied:
            ratios = mean_curve(best_runs(records, name, width), "ratios")
            style = {"ls": STYLES[name], "color": COLORS[name], "label": _label(name)}
            ax.plot(np.arange(1, len(ratios) + 1), ratios, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    title = f"Tied table: gradient as input / as output, d = {width}"
    _titles(ax, title, "step", "ratio of norms")


def training_curves(ax: Axes, records: Records, width: int) -> None:
    """Smoothed training loss of each scheme at its best rate."""
    last = []
    for name in best_losses(records, width):
        losses = mean_curve(best_runs(records, name, width), "losses")
        span = max(1, len(losses) // 30)
        smooth = np.convolve(losses, np.ones(span) / span, mode="valid")
        last.append(smooth[-1])
        style = {"ls": STYLES[name], "color": COLORS[name], "label": _label(name)}
        ax.plot(np.arange(len(smooth)) + span / 2, smooth, **style)
    if last:  # A starts far above
        ax.set_ylim(min(last) * 0.95, min(last) * 2)
    _titles(ax, f"Training at each scheme's best rate, d = {width}", "step", "loss, nats")


def _one(panel, records: Records, preset: Preset, width: int | None = None) -> Figure:
    """A figure of one panel, which says underneath what was measured."""
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    panel(figure.subplots(), records, preset if width is None else width)
    p = preset.protocol
    says = f"{p.layers} layers, V = {p.vocab:,}"
    if width is not None:
        says += f", {p.steps} steps of {p.batch} × {p.window} tokens"
    figure.supxlabel(says, fontsize="small", color="grey")
    return figure


def _label(name: str) -> str:
    return f"{name}: {SCHEMES[name].says}"


def _titles(ax: Axes, title: str, x: str, y: str, legend: bool = True) -> None:
    ax.set(title=title, xlabel=x, ylabel=y)
    if legend and ax.lines:
        ax.legend(fontsize="small")


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path
