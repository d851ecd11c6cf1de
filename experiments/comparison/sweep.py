"""The whole comparison: what is still to do, done task by task and kept at once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

import jax
import numpy as np
from rich.progress import Progress

from experiments.comparison.catalogue import Task
from experiments.comparison.presets import Preset
from experiments.comparison.training import INITIALIZATIONS, Start, Trainer, start
from experiments.study.progress import Pace
from experiments.study.records import Records, Row


@dataclasses.dataclass(frozen=True)
class Run:
    """One initialization of a task, trained at one rate from one seed."""

    task: str
    initialization: str
    rate: float
    seed: int
    width: int

    @property
    def identity(self) -> Row:
        """What tells its row from all others."""
        scheme = {"kind": "run", "scheme": self.initialization, "width": self.width}
        return scheme | {"task": self.task, "rate": self.rate, "seed": self.seed}

    def __str__(self) -> str:
        return f"{self.task:15} {self.initialization:9} {self.rate:<6g} seed {self.seed}"


def runs_of(preset: Preset, task: str) -> list[Run]:
    """All runs of a task, one seed after another."""
    grid = itertools.product(preset.seeds, INITIALIZATIONS, preset.rates)
    width = preset.sizes.width
    return [Run(task, name, rate, seed, width) for seed, name, rate in grid]


def protocol_of(preset: Preset, fingerprint: str) -> Row:
    """All that must agree for two rows to be comparable."""
    device = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    sizes = dataclasses.asdict(preset.sizes) | dataclasses.asdict(preset.budget)
    return sizes | {"text": fingerprint} | device


def train_all(
    preset: Preset,
    tasks: Mapping[str, Task],
    records: Records,
    progress: Progress,
    at_once: int,
    deadline: float | None,
) -> int:
    """Train what the records do not have yet; how many runs are left undone.

    Arguments:
        preset: what is trained, and how.
        tasks: those that are trained.
        records: where a finished run is kept at once.
        progress: the bar.
        at_once: runs that are trained side by side, each by a thread.
        deadline: no run is begun that would end after this `time.monotonic()`.
    """
    todo = {
        name: [run for run in runs_of(preset, name) if not records.find(**run.identity)]
        for name in tasks
    }
    left = sum(map(len, todo.values()))
    steps = preset.budget.steps
    pace = Pace(steps * left, progress, deadline)
    for name, runs in todo.items():
        trainer = Trainer(tasks[name], preset.budget)
        for group in _by_seed(runs):
            pace.name(name)
            if pace.too_late(steps):
                return left
            left -= _train(tasks[name], trainer, group, records, pace, at_once, steps)
    pace.finish()
    return left


def outcome(row: Row) -> str:
    """A run's end in words."""
    if not np.isfinite(row["loss"]):
        return "diverged"
    return f"{row['initial_loss']:.3f} → {row['loss']:.3f}"


def _train(
    task: Task,
    trainer: Trainer,
    runs: list[Run],
    records: Records,
    pace: Pace,
    at_once: int,
    steps: int,
) -> int:
    """Train runs of one seed side by side, and keep each when it ends; how many were trained."""
    seed = runs[0].seed
    starts: dict[str, Start] = {}
    for name in dict.fromkeys(run.initialization for run in runs):
        starts[name] = start(task, name, seed)
        trainer.program(starts[name])  # compiled before threads ask for it

    def train(run: Run) -> Row:
        begin = starts[run.initialization]
        return trainer.program(begin).train(begin.params, run.rate, run.seed)

    done = 0
    with ThreadPoolExecutor(at_once) as threads:
        # No more than can be worked on: what is not begun can still be left for later.
        waiting = iter(runs)
        working = {threads.submit(train, run): run for run in itertools.islice(waiting, at_once)}
        while working:
            finished = next(as_completed(working))
            run, row = working.pop(finished), finished.result()
            records.add([run.identity | row])
            done += 1
            pace.advance(steps)
            pace.say(f"{run}  {outcome(row)}")
            if not pace.too_late(steps) and (following := next(waiting, None)):
                working[threads.submit(train, following)] = following
    return done


def _by_seed(runs: list[Run]) -> Iterator[list[Run]]:
    """Runs of one seed together: they share their first parameters."""
    for _, group in itertools.groupby(runs, key=lambda run: run.seed):
        yield list(group)
