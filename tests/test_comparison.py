"""The comparison on ten tasks: what it trains, keeps, resumes and says."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))

from experiments import tasks
from experiments.comparison import catalogue, examples, summary, tables, training
from experiments.comparison.presets import PRESETS
from experiments.study.records import Records
from experiments.study.tokens import Tokens

# Flax's layers and optax's Adam promote integers and floats.
pytestmark = pytest.mark.standard_promotion

SMOKE = PRESETS["smoke"]
TEXT = np.arange(400, dtype=np.int32) % 64
TOKENS = Tokens(TEXT, TEXT[:100], 64)
TASKS = catalogue.tasks(SMOKE.sizes, TOKENS)
RUNS = len(SMOKE.seeds) * len(SMOKE.rates) * len(training.INITIALIZATIONS)


def run(out: Path, *arguments: str) -> int:
    """The deep MLP of the smoke preset, one run after another."""
    given = ["--preset", "smoke", "--tasks", "mlp", "--at-once", "1", "--out", str(out)]
    return tasks.main([*given, *arguments])


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison")
    with jax.numpy_dtype_promotion("standard"):  # the mark comes later than this fixture
        assert run(out) == 0
    return out


def test_smoke_writes_every_run_a_table_and_a_figure(smoke: Path) -> None:
    rows = lines(smoke / "runs.jsonl")[1:]
    keys = {(row["scheme"], row["rate"], row["seed"]) for row in rows}
    assert len(rows) == len(keys) == RUNS
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert (smoke / "comparison.png").read_bytes().startswith(b"\x89PNG")
    table = (smoke / "table.md").read_text(encoding="utf-8")
    assert table.count("| anyinit, ") == 2
    assert "- **deep MLP, no norm**: anyinit, analytic" in table
    assert "Not trained wholly: ResNet, no norm; GPT, pre-LN, tied;" in table


def test_a_seed_begins_alike_at_every_rate(smoke: Path) -> None:
    first: dict[tuple[str, int], set[float]] = {}
    for row in lines(smoke / "runs.jsonl")[1:]:
        first.setdefault((row["scheme"], row["seed"]), set()).add(row["initial_loss"])
    assert all(len(losses) == 1 for losses in first.values())
    assert len(set.union(*first.values())) == len(first)


def test_resuming_gives_the_same_rows(smoke: Path, tmp_path: Path) -> None:
    whole = (smoke / "runs.jsonl").read_bytes()
    kept = whole.splitlines(keepends=True)[:-3]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(kept) + b'{"kind": "run", "sche')
    assert run(tmp_path) == 0
    assert (tmp_path / "runs.jsonl").read_bytes() == whole


def test_without_time_it_stops_and_says_what_is_left(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (smoke / "runs.jsonl").read_bytes().splitlines(keepends=True)[:-3]
    (tmp_path / "runs.jsonl").write_bytes(b"".join(kept))
    assert run(tmp_path, "--max-hours", "0") == 0
    assert "3 runs are left: start again" in capsys.readouterr().out
    assert "Not trained wholly: deep MLP, no norm;" in (tmp_path / "table.md").read_text("utf-8")


def test_a_run_that_diverges_is_kept_and_the_sweep_goes_on(tmp_path: Path) -> None:
    assert run(tmp_path, "--rates", "1e38", "--seeds", "0") == 0
    rows = lines(tmp_path / "runs.jsonl")[1:]
    assert [row["loss"] for row in rows] == [None] * len(training.INITIALIZATIONS)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "anyinit, analytic and the default both diverge at every rate" in table


def test_what_cannot_be_asked_for(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tasks.main(["--preset", "smoke", "--tasks", "rnn", "--out", str(smoke)]) == 2
    assert (
        "there is no task 'rnn': give some of mlp, resnet, gpt-pre-tied" in capsys.readouterr().err
    )
    assert run(tmp_path, "--at-once", "0") == 2
    assert "--at-once 0 runs were asked for: give 1 or more" in capsys.readouterr().err


def test_ten_tasks_of_width_64_or_more_make_a_loss_from_any_key() -> None:
    sizes = PRESETS["full"].sizes
    assert sizes.width >= 64
    found = catalogue.tasks(sizes, TOKENS)
    assert len(found) == 10
    key = jax.random.key(0)
    for task in found.values():

        def loss(key: jax.Array, task: catalogue.Task = task) -> jax.Array:
            inputs, targets = task.train(key)
            return task.loss(task.model.init_with_output(key, inputs)[0], targets)

        assert jax.eval_shape(loss, key).shape == ()
        trained, held_out = (jax.eval_shape(draw, key) for draw in (task.train, task.held_out))
        assert trained == held_out


def test_images_are_normalized_and_every_shape_differs() -> None:
    key = jax.random.key(3)
    images, kinds = jax.jit(examples.shapes(256))(key)
    same, covered = jax.jit(examples.masks(256))(key)
    # Two programs of the same images, compiled apart.
    np.testing.assert_allclose(images, same, atol=1e-5)
    np.testing.assert_allclose(jnp.mean(images, axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(jnp.mean(images**2, axis=(1, 2, 3)), 1, rtol=1e-4)
    assert set(np.unique(kinds).tolist()) == set(range(len(examples.SHAPES)))
    assert float(jnp.min(jnp.sum(covered, axis=(1, 2)))) >= 4
    # A covered pixel is brighter than an empty one of the same image.
    inside = jnp.sum(images[..., 0] * covered) / jnp.sum(covered)
    assert float(inside) > 1


def test_every_class_of_the_teacher_occurs() -> None:
    x, kinds = jax.jit(examples.taught(2000))(jax.random.key(0))
    assert x.shape == (2000, examples.TEACHER_INPUTS)
    counts = np.bincount(np.asarray(kinds), minlength=examples.TEACHER_CLASSES)
    assert counts.min() > 20
    assert counts.max() < 1000


def test_targets_are_the_tokens_that_follow() -> None:
    inputs, targets = jax.jit(examples.windows(jnp.asarray(TEXT), 8, 5))(jax.random.key(0))
    assert inputs.shape == targets.shape == (5, 8)
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])


def test_only_the_anyinit_rows_train_through_the_partition() -> None:
    task = TASKS["gpt-post-untied"]
    default, analytic = (training.start(task, name, 0) for name in ("default", "analytic"))
    assert default.plan is None
    assert default.rates == frozenset()
    # The lookup × √d of an untied table: its rows move at 1/√d of the rate.
    assert dict(analytic.rates) == {"tokens/embedding": pytest.approx(SMOKE.sizes.width**-0.5)}


def test_the_rate_rises_and_falls() -> None:
    at = training.Budget(steps=10, warmup=2, held_out=1).schedule(0.5)
    rates = [float(at(step)) for step in range(10)]
    assert rates[0] == pytest.approx(0.25)
    assert max(rates) == pytest.approx(0.5)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0.05 <= rates[-1] < 0.12


def recorded(tmp_path: Path, **losses: dict[float, list[float]]) -> Records:
    """Rows of the deep MLP with these final losses, by start and rate, a seed each."""
    records = Records(tmp_path / "runs.jsonl", {})
    identity = {"kind": "run", "task": "mlp", "width": SMOKE.sizes.width, "initial_loss": 2.5}
    records.add(
        [
            identity | {"scheme": name, "rate": rate, "seed": seed, "loss": loss}
            for name, by_rate in losses.items()
            for rate, values in by_rate.items()
            for seed, loss in enumerate(values)
        ]
    )
    return records


@pytest.mark.parametrize(
    ("analytic", "said"),
    [
        ([1.0, 1.1], "anyinit, analytic wins by 0.950 (spread 0.200)"),
        ([3.0, 3.1], "the default wins over anyinit, analytic by 1.050 (spread 0.200)"),
        (
            [1.8, 2.2],
            "anyinit, analytic and the default cannot be told apart (0.000 below it, spread 0.400)",
        ),
        ([math.nan, 1.0], "the default wins: anyinit, analytic diverges at every rate"),
    ],
)
def test_who_wins_beyond_the_spread(tmp_path: Path, analytic: list[float], said: str) -> None:
    bad = [9.0, 9.0] if all(map(math.isfinite, analytic)) else analytic
    records = recorded(
        tmp_path,
        default={1e-3: [4.0, 4.0], 1e-2: [1.9, 2.1]},
        analytic={1e-3: analytic, 1e-2: bad},
        empirical={1e-3: [5.0, math.nan], 1e-2: [1.9, 2.1]},
    )
    found = summary.best(SMOKE, records, "mlp")
    assert found["default"].at.rate == 1e-2
    assert found["empirical"].at.rate == 1e-2  # a seed that diverged rules a rate out
    assert summary.verdict(found).startswith(f"{said}; anyinit, empirical and the default cannot")
    assert "best at the end of the sweep: Flax's default" in summary.verdict(found)


def test_a_task_without_all_of_its_runs_has_no_line(tmp_path: Path) -> None:
    records = recorded(tmp_path, default={1e-3: [4.0, 4.0], 1e-2: [1.9]})
    assert summary.best(SMOKE, records, "mlp") == {}
    assert tables.markdown(SMOKE, {"mlp": TASKS["mlp"]}, records) == (
        "Not trained wholly: deep MLP, no norm.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_from_every_start(name: str) -> None:
    # A vocabulary and steps so small that a few of them must lower the loss.
    task = TASKS[name]
    budget = dataclasses.replace(SMOKE.budget, steps=30)
    trainer = training.Trainer(task, budget)
    for initialization in training.INITIALIZATIONS:
        begin = training.start(task, initialization, 0)
        found = trainer.program(begin).train(begin.params, 1e-2, 0)
        assert found["loss"] < found["initial_loss"], (initialization, found)
