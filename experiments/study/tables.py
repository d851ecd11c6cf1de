"""`table.md`: the study's figures beside the page's, and what they say; `init.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from experiments.study import page
from experiments.study.conclusions import after_training, before_training
from experiments.study.presets import Preset
from experiments.study.protocol import PAGE_ROWS, SCHEMES
from experiments.study.records import Records
from experiments.study.summary import (
    best_losses,
    best_runs,
    initial,
    mean_curve,
    mean_losses,
    names,
    spread,
    widths,
)

INITIAL = {"loss": "loss", "logit_std": "logit std", "own_token": "own-token"}


def markdown(preset: Preset, records: Records) -> str:
    """The whole of `table.md`."""
    protocol = preset.protocol
    seeds = sorted({row["seed"] for row in records.find(kind="run")})
    parts = [
        "# Tied embeddings: which scale should the shared table get?",
        f"{protocol.layers}-layer pre-LN GPT without positions, V = {protocol.vocab:,}, "
        f"{protocol.steps} steps of {protocol.batch} × {protocol.window} tokens of "
        f"{Path(preset.data).name}, {len(seeds)} seed{'s' * (len(seeds) != 1)}. Losses in nats. "
        f"A dash: not run; `diverged`: not finite.",
        "## Before training",
        "Initial loss, standard deviation of the logits, and mean logit of the input token; the "
        "page's loss at d = 128 → 1024.",
        initial_table(records),
        *_verdicts(before_training(records)),
    ]
    for width in widths(records, "run"):
        parts += [f"## After training, d = {width}", loss_table(records, width)]
        title = "### Table's gradient: norm as input / norm as output, at each scheme's best rate"
        parts += [title, ratio_table(records, width, protocol.probes)]
        parts += _verdicts(after_training(records, width))
    parts += ["## The page's figures (wikitext-2, V = 33,527, 4 layers, 800 steps)", page_table()]
    return "\n\n".join(parts) + "\n"


def initial_table(records: Records) -> str:
    """Loss, spread of the logits and logit of the input token, by scheme and width."""
    columns = widths(records, "initial")
    head = ["", "table"] + [f"{words}, d = {w}" for words in INITIAL.values() for w in columns]
    lines = []
    for name in names(records, "initial"):
        cells = [_number(initial(records, name, w, key), 2) for key in INITIAL for w in columns]
        lines.append([name, SCHEMES[name].says, *cells, _page_initial(name)])
    return grid([*head, "page's loss"], lines)


def loss_table(records: Records, width: int) -> str:
    """Validation loss at each rate, and the best of them with the page's."""
    rates = sorted({row["rate"] for row in records.find(kind="run", width=width)})
    theirs = page.VALIDATION_LOSS.get(width)
    head = ["", "table", *(f"rate {rate:g}" for rate in rates), "best", "seed spread"]
    best = best_losses(records, width)
    lines = []
    for name in names(records, "run", width):
        losses = mean_losses(records, name, width)
        cells = [_number(losses[rate], 3) if rate in losses else "-" for rate in rates]
        apart = spread(best_runs(records, name, width))
        cells += [_number(best.get(name), 3), "-" if apart is None else _number(apart, 3)]
        lines.append([name, SCHEMES[name].says, *cells])
        if theirs:
            lines[-1].append(f"{theirs[name]:.2f}" if name in theirs else "-")
    return grid(head + ["page"] * bool(theirs), lines)


def ratio_table(records: Records, width: int, probes: Sequence[int]) -> str:
    """The ratio of the tied table's two gradients at a few steps."""
    lines = []
    for name in names(records, "run", width):
        rows = best_runs(records, name, width)
        if SCHEMES[name].tied and rows:
            curve = mean_curve(rows, "ratios")
            lines.append([name, SCHEMES[name].says, *(_number(curve[s], 2) for s in probes)])
    return grid(["", "table", *(f"step {step}" for step in probes)], lines)


def page_table() -> str:
    """The page's own table."""
    head = ["", "table", "initial loss, d = 128 → 1024"]
    head += [f"val. loss, d = {width}" for width in page.VALIDATION_LOSS]
    lines = [
        [name, SCHEMES[name].says, _page_initial(name)]
        + [f"{losses[name]:.2f}" for losses in page.VALIDATION_LOSS.values()]
        for name in PAGE_ROWS
    ]
    return grid(head, lines)


def initial_csv(records: Records) -> str:
    """The whole of `init.csv`: a line a scheme and width."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["scheme", "width", *INITIAL])
    for row in records.find(kind="initial"):
        table.writerow([row["scheme"], row["width"], *(row[key] for key in INITIAL)])
    return text.getvalue()


def grid(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table that is aligned in a terminal too."""
    sizes = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * max(size, 3) for size in sizes]
    return "\n".join(
        "| " + " | ".join(c.ljust(max(s, 3)) for c, s in zip(line, sizes, strict=True)) + " |"
        for line in [head, rule, *lines]
    )


def _verdicts(lines: list[str]) -> list[str]:
    return ["### What this says", "\n".join(lines)] if lines else []


def _page_initial(name: str) -> str:
    ends = page.INITIAL_LOSS.get(name)
    return "-" if ends is None else " → ".join(f"{x:.0f}" if x > 99 else f"{x:.1f}" for x in ends)


def _number(value: float | None, digits: int) -> str:
    return "diverged" if value is None else f"{value:.{digits}f}"
