"""What the study says of its rows."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments.study import page, tables
from experiments.study.conclusions import NO, OPEN, YES, after_training, before_training
from experiments.study.presets import PRESETS
from experiments.study.records import Records

STEPS = 120


def records(
    tmp_path: Path, losses: dict[str, float], width: int = 128, apart: float = 0.02, seeds: int = 2
) -> Records:
    """Seeds that differ by `apart`, ratios that fall and rise, and two widths before training."""
    made = Records(tmp_path / "runs.jsonl", {})
    for name, loss in losses.items():
        for seed, shift in enumerate((-apart / 2, apart / 2) if seeds == 2 else (0.0,)):
            row = {"kind": "run", "scheme": name, "width": width, "rate": 1e-3, "seed": seed}
            ratios = [0.6] + [0.1] * 110 + [0.3] * 9
            curve = [loss + 1] * STEPS
            measured = {"validation_loss": loss + shift, "losses": curve, "ratios": ratios}
            made.add([row | measured])
        for at in (64, 128):
            own = math.sqrt(at)
            row = {"kind": "initial", "scheme": name, "width": at}
            measured = {"loss": at if name == "A" else 9.0, "logit_std": own, "own_token": own}
            made.add([row | measured])
    return made


def verdict(lines: list[str], words: str) -> str:
    (line,) = [line for line in lines if words in line]
    return line.rsplit(": ", 1)[1]


def test_the_pages_own_losses_bear_out_its_conclusions(tmp_path: Path) -> None:
    lines = after_training(records(tmp_path, page.VALIDATION_LOSS[512], 512), 512)
    for words in (
        "A ends worst",
        "C ends best",
        "F, whose",
        "D ends behind",
        "D′ closes",
        "E, unt",
    ):
        assert verdict(lines, words) == YES, words
    assert verdict(lines, "gradient as input falls") == YES
    assert any("lowest at step 1 to 1 " in line for line in lines)


def test_a_gap_that_closes_in_part_says_by_how_much(tmp_path: Path) -> None:
    lines = after_training(records(tmp_path, page.VALIDATION_LOSS[128]), 128)
    assert "not reproduced, 61% of it is closed" in verdict(lines, "D′ closes")


def test_differences_within_seed_noise_are_not_resolved(tmp_path: Path) -> None:
    losses = {"A": 6.0, "C": 5.0, "D": 5.03, "D′": 5.0, "F": 4.97}
    lines = after_training(records(tmp_path, losses), 128)
    assert verdict(lines, "A ends worst") == YES
    for words in ("C ends best", "F, whose", "D ends behind", "D′ ends ahead", "D′ closes"):
        assert verdict(lines, words) == OPEN, words


@pytest.mark.parametrize(("apart", "seeds"), [(0.02, 1), (0.3, 2)])
def test_one_seed_and_seeds_far_apart_resolve_less(
    tmp_path: Path, apart: float, seeds: int
) -> None:
    made = records(tmp_path, {"A": 6.0, "C": 5.0, "F": 5.06}, apart=apart, seeds=seeds)
    assert verdict(after_training(made, 128), "F, whose") == OPEN
    assert verdict(after_training(made, 128), "A ends worst") == YES


def test_the_opposite_is_not_reproduced(tmp_path: Path) -> None:
    lines = after_training(records(tmp_path, {"A": 4.0, "C": 5.0, "F": 4.5}), 128)
    assert verdict(lines, "A ends worst") == NO
    assert verdict(lines, "F, whose") == NO


def test_before_training(tmp_path: Path) -> None:
    lines = before_training(records(tmp_path, {"A": 6.0, "C": 5.0, "D": 5.0}))
    assert [verdict(lines, words) for words in ("A's logits", "C and D", "C's logit")] == [YES] * 3


def test_tables_show_ours_beside_the_pages(tmp_path: Path) -> None:
    found = tables.markdown(
        PRESETS["full"].changed(steps=STEPS), records(tmp_path, page.VALIDATION_LOSS[128])
    )
    (row,) = [line for line in found.splitlines() if line.startswith("| C ") and "5.770" in line]
    assert row.split("|")[-4:-1] == pytest.approx([" 5.770 ", " 0.020       ", " 5.77 "])
