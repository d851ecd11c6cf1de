"""Each conclusion of the page, and whether the rows bear it out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from experiments.study.page import NOISE
from experiments.study.protocol import PAGE_ROWS, SCHEMES
from experiments.study.records import Records
from experiments.study.summary import (
    best_losses,
    best_runs,
    initial,
    mean_curve,
    spread,
    widths,
)

YES, NO, OPEN = "reproduced", "not reproduced", "not resolved at this scale"
UNLEARNED = 25
"""Steps after which the page finds the first guess, the input token itself, unlearned."""
SETTLED = 100
"""The step by which the page finds the input-side gradient fallen."""


def before_training(records: Records) -> list[str]:
    """What the page says of the network before its first step."""
    columns = widths(records, "initial")

    def over_widths(name: str, key: str) -> list[float | None]:
        return [initial(records, name, width, key) for width in columns]

    lines = []
    losses, stds = over_widths("A", "loss"), over_widths("A", "logit_std")
    if len(columns) > 1 and None not in losses:
        near = all(abs(s / math.sqrt(w) - 1) < 0.1 for s, w in zip(stds, columns, strict=True))
        shown = ", ".join(f"{loss:.1f}" for loss in losses)
        grows = losses == sorted(losses) and near
        words = "A's logits have standard deviation √d, and its initial loss grows with width"
        lines.append(f"- {words} ({shown}): {_verdict(grows)}")
    pairs = list(zip(over_widths("C", "loss"), over_widths("D", "loss"), strict=True))
    if pairs and not any(None in pair for pair in pairs):
        apart = max(abs(c - d) / c for c, d in pairs)
        words = f"C and D start as the same function (losses differ by {apart:.1e} at most)"
        lines.append(f"- {words}: {_verdict(apart < 0.01)}")
    for name in ("C", "D"):
        own = over_widths(name, "own_token")
        if own and None not in own:
            shares = [logit / math.sqrt(w) for logit, w in zip(own, columns, strict=True)]
            shown = ", ".join(f"{share:.2f}" for share in shares)
            near = all(0.7 < share < 1.1 for share in shares)
            words = f"{name}'s logit of the input token starts near √d ({shown} of it)"
            lines.append(f"- {words}: {_verdict(near)}")
    return lines


def after_training(records: Records, width: int) -> list[str]:
    """What the page says of networks trained at one width."""
    best = best_losses(records, width)
    tied = {n: best[n] for n in PAGE_ROWS if n in best and SCHEMES[n].tied}
    lines = []
    if "A" in tied and len(tied) > 1:
        worst = max((name for name in tied if name != "A"), key=lambda name: tied[name])
        lines.append(_lead("A ends worst of the tied", records, width, "A", worst))
    rivals = {name: loss for name, loss in tied.items() if name not in ("C", "D′")}
    if "C" in tied and rivals:
        words = "C ends best of the tied, D′ aside"
        lines.append(_lead(words, records, width, min(rivals, key=lambda n: rivals[n]), "C"))
    tests = (
        ("F, whose lookup enters small, ends behind C", "F", "C"),
        ("D ends behind C, though they start alike", "D", "C"),
        ("D′ ends ahead of D", "D", "D′"),
    )
    lines += [_lead(w, records, width, a, b) for w, a, b in tests if a in best and b in best]
    if {"C", "D", "D′"} <= best.keys():
        lines.append(_closing(records, width))
    if {"C", "E"} <= best.keys() and width >= 512:
        apart = abs(best["E"] - best["C"])
        holds = apart < noise(records, width, "E", "C")
        lines.append(f"- E, untied, ends within noise of C ({apart:.3f}): {_verdict(holds)}")
    return lines + list(_unlearning(records, width)) + list(_gradients(records, width))


def noise(records: Records, width: int, *schemes: str) -> float:
    """How much of a difference between schemes their seeds may account for.

    The page's figure is for means over two seeds: with one it is √2 larger. Where seeds differ by
    more, half their spread, about the standard error of such a mean, takes its place.
    """
    found = []
    for name in schemes:
        rows = best_runs(records, name, width)
        found += [NOISE * math.sqrt(2 / len(rows)), (spread(rows) or 0.0) / 2]
    return max(found)


def _closing(records: Records, width: int) -> str:
    best = best_losses(records, width)
    gap, left = best["D"] - best["C"], best["D′"] - best["C"]
    words = f"- D′ closes the gap between D and C ({gap:.3f} → {left:.3f})"
    if gap < noise(records, width, "D", "C"):
        return f"{words}: {OPEN}"
    if left < noise(records, width, "D′", "C"):
        return f"{words}: {YES}"
    return f"{words}: {NO}, {1 - left / gap:.0%} of it is closed"


def _unlearning(records: Records, width: int) -> Iterator[str]:
    """C begins by predicting its input, which lifts its first loss over that of F."""
    rows = {name: best_runs(records, name, width) for name in ("C", "F")}
    if not all(rows.values()):
        return
    c, f = (mean_curve(rows[name], "losses") for name in ("C", "F"))
    around = slice(UNLEARNED - 5, UNLEARNED + 5)
    if len(c) < UNLEARNED + 5 or not np.isfinite([*c, *f]).all():
        return
    first, then = c[0] - f[0], (c - f)[around].mean()
    words = f"what C's first guess adds to its loss over F's is gone by step {UNLEARNED}"
    yield f"- {words} ({first:+.2f} → {then:+.2f}): {_verdict(then < 0.1 * first)}"


def _gradients(records: Records, width: int) -> Iterator[str]:
    """The ratio of the table's gradients: first, lowest until it has settled, then, and last."""
    curves = {}
    for name in PAGE_ROWS:
        rows = best_runs(records, name, width) if SCHEMES[name].tied else []
        if rows and len(curve := mean_curve(rows, "ratios")) > SETTLED:
            curves[name] = curve
    if not curves:
        return
    words = f"the table's gradient as input falls against that as output by step {SETTLED}"
    falls = {name: (curve[0], curve[SETTLED]) for name, curve in curves.items()}
    holds = all(after < before for before, after in falls.values())
    yield f"- {words} ({_arrows(falls)}): {_verdict(holds)}"
    lowest = {name: int(np.argmin(curve[:SETTLED])) for name, curve in curves.items()}
    turns = {n: (c[lowest[n]], c[-1]) for n, c in curves.items() if c[-1] > c[lowest[n]]}
    if turns:
        at = sorted(lowest[name] for name in turns)
        words = f"the ratio is lowest at step {at[0]} to {at[-1]} and has risen by the last step"
        yield f"- not on the page: {words} ({_arrows(turns)})"


def _arrows(pairs: dict[str, tuple[float, float]]) -> str:
    return ", ".join(f"{name} {a:.2f} → {b:.2f}" for name, (a, b) in pairs.items())


def _verdict(holds: bool) -> str:
    return YES if holds else NO


def _lead(words: str, records: Records, width: int, behind: str, ahead: str) -> str:
    best = best_losses(records, width)
    lead = best[behind] - best[ahead]
    small = abs(lead) < noise(records, width, behind, ahead)
    return f"- {words} ({lead:+.3f}): {OPEN if small else _verdict(lead > 0)}"
