"""The study's command line: what it writes, resumes and refuses."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments import tied
from experiments.study import step, sweep
from experiments.study.errors import StudyError
from experiments.study.presets import PRESETS
from experiments.study.protocol import PAGE_ROWS, scheme
from experiments.study.records import Records
from experiments.study.runs import runs_of, side_by_side

# Flax's layers and optax's Adam promote bfloat16, integers and floats.
pytestmark = pytest.mark.standard_promotion

PROTOCOL = PRESETS["smoke"].protocol
FIGURES = ("validation_loss", "final_loss", "gradient_ratio", "training")


def run(out: Path, *arguments: str) -> int:
    """The smoke preset on one device."""
    return tied.main(["--preset", "smoke", "--devices", "1", "--out", str(out), *arguments])


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smoke")
    step.steps.cache_clear()
    assert run(out) == 0
    compiled = step.steps.cache_info().misses
    assert compiled == 2  # one executable for all tied schemes, one for E
    return out


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_smoke_writes_every_row_a_table_and_figures(smoke: Path) -> None:
    rows = lines(smoke / "runs.jsonl")[1:]
    trained = {row["scheme"]: row for row in rows if row["kind"] == "run"}
    assert tuple(trained) == PAGE_ROWS
    assert all(len(row["losses"]) == PROTOCOL.steps for row in trained.values())
    assert sum(row["kind"] == "initial" for row in rows) == 2 * len(PAGE_ROWS)
    table = (smoke / "table.md").read_text(encoding="utf-8")
    assert "D, table's rate × √d" in table
    assert "its initial loss grows with width" in table
    first, *others = (smoke / "init.csv").read_text(encoding="utf-8").splitlines()
    assert first == "scheme,width,loss,logit_std,own_token"
    assert len(others) == 2 * len(PAGE_ROWS)
    for figure in ("initial_loss", *(f"{name}_d32" for name in FIGURES)):
        assert (smoke / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_d_prime_is_d_until_the_first_step(smoke: Path) -> None:
    runs = {row["scheme"]: row for row in lines(smoke / "runs.jsonl")[1:] if row["kind"] == "run"}
    assert runs["D"]["losses"][0] == runs["D′"]["losses"][0]
    assert runs["D"]["losses"][1] != runs["D′"]["losses"][1]


def test_resuming_gives_the_same_rows(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (smoke / "runs.jsonl").read_bytes()
    kept = whole.splitlines(keepends=True)[:-3]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(kept) + b'{"kind": "run", "sche')
    assert run(tmp_path) == 0
    assert (tmp_path / "runs.jsonl").read_bytes() == whole
    assert (tmp_path / "runs.jsonl.broken").read_bytes() == b'{"kind": "run", "sche\n'
    assert "was cut" in capsys.readouterr().out


def test_nothing_left_to_do(smoke: Path) -> None:
    before = (smoke / "runs.jsonl").read_bytes()
    assert run(smoke) == 0
    assert (smoke / "runs.jsonl").read_bytes() == before


def test_without_time_it_stops_and_says_what_is_left(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.jsonl").write_bytes(
        b"".join((smoke / "runs.jsonl").read_bytes().splitlines(keepends=True)[:-3])
    )
    assert run(tmp_path, "--max-hours", "0") == 0
    assert "3 runs are left: start again" in capsys.readouterr().out
    assert (tmp_path / "table.md").exists()


def test_a_run_that_diverges_is_kept_and_the_sweep_goes_on(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rates", "1e38", "1e-2", "--schemes", "C"]
    assert run(tmp_path, *arguments) == 0
    huge, usual = (row for row in lines(tmp_path / "runs.jsonl")[1:] if row["kind"] == "run")
    assert huge["validation_loss"] is None
    assert huge["losses"][-1] is None
    assert usual["validation_loss"] < math.log(PROTOCOL.vocab)
    assert "diverged" in capsys.readouterr().out
    assert "diverged" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_a_whole_study_that_diverges_is_written_up(tmp_path: Path) -> None:
    assert run(tmp_path, "--rates", "1e38", "--schemes", "A", "C") == 0
    assert "diverged" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    identity = {"kind": "run", "scheme": "A", "width": 32, "rate": 1e3, "seed": 0}
    records = Records(tmp_path / "runs.jsonl", {})
    records.add([identity | {"validation_loss": math.nan, "losses": [6.0, math.inf]}])
    (row,) = Records(tmp_path / "runs.jsonl", {}).rows
    assert row == identity | {"validation_loss": None, "losses": [6.0, None]}


@pytest.mark.parametrize("kept", [b"", b'{"proto'])
def test_a_file_that_was_cut_in_its_first_line(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(kept)
    records = Records(path, {"vocab": 5})
    assert records.rows == []
    assert lines(path) == [{"protocol": {"vocab": 5}}]
    assert (records.set_aside is not None) == bool(kept)


def test_rows_of_another_protocol_are_refused(
    smoke: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (smoke / "runs.jsonl").read_bytes()
    assert run(smoke, "--steps", "30") == 2
    error = capsys.readouterr().err
    assert "another protocol" in error
    assert "steps = 20" in error
    assert "steps = 30" in error
    assert (smoke / "runs.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: cannot write in the folder")
    assert "--out" in error
    assert error.count("\n") == 1


def test_an_unknown_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--schemes", "no-such") == 2
    assert "no scheme is called 'no-such': choose among A, B" in capsys.readouterr().err


def test_a_batch_that_the_devices_do_not_divide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tied.main(["--preset", "smoke", "--devices", "3", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "a batch of 4 windows cannot be split over 3 devices: give --devices 2" in error


def test_a_line_that_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"protocol": {}}\n[1]\n')
    with pytest.raises(StudyError, match=r"line 2 of .* is not a row"):
        Records(path, {})


def test_a_run_always_has_the_same_company() -> None:
    preset = PRESETS["full"]
    grid = runs_of(preset, [scheme(name) for name in preset.schemes])
    groups = side_by_side(grid, 8)
    assert sorted(map(str, grid)) == sorted(str(run) for group in groups for run in group)
    for group in groups:
        assert len({(run.width, run.scheme.tied) for run in group}) == 1
        assert len(group) <= 8


def test_the_warm_up_keeps_its_share_of_the_steps() -> None:
    changed = PRESETS["full"].changed(steps=400, rates=[1e-3])
    assert changed.protocol.warmup == 25
    assert changed.grid.of(scheme("D′"), 128) == (1e-3,)


def test_compiled_code_is_kept_when_asked(smoke: Path, tmp_path: Path) -> None:
    import jax

    before = jax.config.jax_compilation_cache_dir
    try:
        cache = tmp_path / "compiled"
        step.steps.cache_clear()
        arguments = ("--schemes", "C", "--compilation-cache", str(cache))
        assert run(tmp_path / "out", *arguments) == 0
        assert any("of_one" in path.name or "advance" in path.name for path in cache.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_the_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    sweep.make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
