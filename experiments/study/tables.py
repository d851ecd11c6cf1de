"""`table.md`: the study's figures beside the page's, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from experiments.study.protocol import SCHEMES, Preset
from experiments.study.records import Records, Row

NOISE = 0.05
"""Differences of validation loss below this are within the scatter of seeds."""

PAGE = {  # initial loss at d = 128 → 1024; validation loss at d = 128 and 512
    "A": ("110 → 905", "6.25", "6.85"),
    "B": ("10.4 → 10.7", "6.12", "5.86"),
    "C": ("11.2 → 28.3", "5.77", "5.71"),
    "D": ("11.2 → 28.3", "6.00", "6.15"),
    "D′": ("11.2 → 28.3", "5.86", "5.66"),
    "F": ("10.8 → 11.0", "5.87", "5.88"),
    "E": ("10.9 → 10.9", "5.92", "5.73"),
}


def write(preset: Preset, records: Records) -> str:
    """The whole of `table.md`."""
    protocol = preset.protocol
    parts = [
        "# Tied embeddings: which scale should the shared table get?",
        f"{protocol.layers}-layer pre-LN GPT without positions, V = {protocol.vocab:,}, "
        f"{protocol.steps} steps of {protocol.batch} × {protocol.window} tokens of "
        f"{preset.data}, {len(preset.seeds)} seed{'s' * (len(preset.seeds) > 1)}. Losses in nats. "
        f"A dash: not run; `diverged`: not finite.",
        "## Before training",
        "Initial loss, standard deviation of the logits, and mean logit of the input token.",
        initial_table(records),
    ]
    for width in widths(records, "run"):
        parts += [f"## After training, d = {width}", loss_table(records, width)]
        title = "## Table's gradient: norm as input / norm as output, at each scheme's best rate"
        parts += [title, ratio_table(records, width, protocol.probes)]
        if said := conclusions(records, width):
            parts += ["## What this says", "\n".join(said)]
    page = [[name, SCHEMES[name].says, *PAGE[name]] for name in PAGE]
    head = ["", "table", "initial loss, d = 128 → 1024", "val. loss, d = 128", "d = 512"]
    parts += ["## The page's figures (wikitext-2, V = 33,527, 4 layers, 800 steps)"]
    return "\n\n".join([*parts, grid(head, page)]) + "\n"


def initial_table(records: Records) -> str:
    """Loss, spread of the logits and logit of the input token, by scheme and width."""
    columns = widths(records, "initial")
    quantities = {"loss": "loss", "logit_std": "logit std", "own_token": "own-token"}
    head = ["", "table"] + [f"{words}, d = {w}" for words in quantities.values() for w in columns]
    lines = []
    for name in names(records, "initial"):
        cells = [
            _number(_one(records.find(kind="initial", scheme=name, width=width), key), 2)
            for key in quantities
            for width in columns
        ]
        lines.append([name, SCHEMES[name].says, *cells])
    return grid(head, lines)


def loss_table(records: Records, width: int) -> str:
    """Validation loss at each rate, and the best of them with the page's."""
    rates = sorted({row["rate"] for row in records.find(kind="run", width=width)})
    page = {128: 1, 512: 2}.get(width)
    head = ["", "table", *(f"rate {rate:g}" for rate in rates), "best", "seed spread"]
    lines = []
    for name in names(records, "run"):
        losses = mean_losses(records, name, width)
        cells = [_number(losses[rate], 3) if rate in losses else "-" for rate in rates]
        best = best_rate(records, name, width)
        seeds = [] if best is None else _runs(records, name, width, best)
        values = [row["validation_loss"] for row in seeds]
        spread = max(values) - min(values) if len(values) > 1 else None
        least = None if best is None else losses[best]
        cells += [_number(least, 3), "-" if spread is None else _number(spread, 3)]
        lines.append([name, SCHEMES[name].says, *cells])
        if page:
            lines[-1].append(PAGE[name][page] if name in PAGE else "-")
    return grid(head + ["page, wikitext-2"] * bool(page), lines)


def ratio_table(records: Records, width: int, probes: Sequence[int]) -> str:
    """The ratio of the tied table's two gradients at a few steps."""
    lines = []
    for name in names(records, "run"):
        rate = best_rate(records, name, width)
        if SCHEMES[name].tied and rate is not None:
            runs = _runs(records, name, width, rate)
            means = [_mean([row["ratios"][step] for row in runs]) for step in probes]
            lines.append([name, SCHEMES[name].says, *(_number(mean, 2) for mean in means)])
    return grid(["", "table", *(f"step {step}" for step in probes)], lines)


def conclusions(records: Records, width: int) -> list[str]:
    """Each conclusion of the page that the rows can test, and how the test came out."""
    losses = {row["width"]: row["loss"] for row in records.find(kind="initial", scheme="A")}
    best = {}
    for name in names(records, "run"):
        rate = best_rate(records, name, width)
        if rate is not None:
            best[name] = mean_losses(records, name, width)[rate] or 0.0
    lines = []
    if len(losses) > 1:
        values = [losses[w] for w in sorted(losses)]
        grows = None not in values and values == sorted(values)
        shown = ", ".join(_number(value, 1) for value in values)
        lines.append(f"- A's initial loss grows with width ({shown}): {_verdict(grows)}")
    others = [best[name] for name in PAGE if name in best and name != "A" and SCHEMES[name].tied]
    if "A" in best and others:
        lines.append(_compare("A ends worst of the tied", best["A"] - max(others)))
    tests = (
        ("C ends ahead of F", "F", "C"),
        ("D′ ends ahead of D", "D", "D′"),
        ("C ends ahead of D", "D", "C"),
    )
    lines += [
        _compare(words, best[worse] - best[better])
        for words, worse, better in tests
        if worse in best and better in best
    ]
    return lines


def names(records: Records, kind: str) -> list[str]:
    """The schemes that have rows, in the page's order."""
    present = {row["scheme"] for row in records.find(kind=kind)}
    return [name for name in SCHEMES if name in present]


def widths(records: Records, kind: str) -> list[int]:
    """The widths that have rows."""
    return sorted({row["width"] for row in records.find(kind=kind)})


def mean_losses(records: Records, name: str, width: int) -> dict[float, float | None]:
    """Validation loss by rate, mean over seeds; None where a run diverged."""
    rows = records.find(kind="run", scheme=name, width=width)
    rates = sorted({row["rate"] for row in rows})
    return {
        rate: _mean([row["validation_loss"] for row in _runs(records, name, width, rate)])
        for rate in rates
    }


def best_rate(records: Records, name: str, width: int) -> float | None:
    """The rate with the least validation loss."""
    losses = mean_losses(records, name, width)
    finite = {rate: loss for rate, loss in losses.items() if loss is not None}
    return min(finite, key=lambda rate: finite[rate], default=None)


def grid(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table that is aligned in a terminal too."""
    sizes = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * max(size, 3) for size in sizes]
    return "\n".join(
        "| " + " | ".join(c.ljust(max(s, 3)) for c, s in zip(line, sizes, strict=True)) + " |"
        for line in [head, rule, *lines]
    )


def _runs(records: Records, name: str, width: int, rate: float) -> list[Row]:
    return records.find(kind="run", scheme=name, width=width, rate=rate)


def _one(rows: list[Row], key: str) -> float | None:
    return rows[0][key] if rows else None


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return fmean(finite) if len(finite) == len(values) else None


def _number(value: float | None, digits: int) -> str:
    return "diverged" if value is None else f"{value:.{digits}f}"


def _verdict(holds: bool) -> str:
    return "reproduced" if holds else "not reproduced"


def _compare(words: str, lead: float) -> str:
    verdict = "not resolved at this scale" if abs(lead) < NOISE else _verdict(lead > 0)
    return f"- {words} ({lead:+.3f}): {verdict}"
