"""The whole study: what is still to do, done one after another and kept at once."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from experiments.study import data, statistics, train
from experiments.study.errors import StudyError
from experiments.study.protocol import Preset, Scheme
from experiments.study.records import Records, Row


@dataclasses.dataclass(frozen=True)
class Run:
    """A network to train."""

    seed: int
    width: int
    scheme: Scheme
    rate: float

    @property
    def identity(self) -> Row:
        """What tells its row from all others."""
        where = {"width": self.width, "rate": self.rate, "seed": self.seed}
        return {"kind": "run", "scheme": self.scheme.name} | where

    def __str__(self) -> str:
        named = f"{self.scheme.name:9} d = {self.width}"
        return f"{named}  rate {self.rate:<6g} seed {self.seed}"


def sweep(preset: Preset, schemes: list[Scheme], out: Path, console: Console) -> Records:
    """Measure and train everything that `out/runs.jsonl` does not have yet."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"cannot make the folder {out} ({error.strerror}): give a writable one with --out"
        ) from error
    protocol = preset.protocol
    with console.status(f"reading {preset.data}"):
        tokens = data.load(preset.data, protocol.vocab, protocol.window, out)
    described = protocol_of(preset, tokens.fingerprint)
    records = Records(out / "runs.jsonl", described)
    if records.set_aside:
        console.print(f"the last line of runs.jsonl was cut: moved to {records.set_aside}")
    console.print(
        f"{preset.data}: {len(tokens.train):,} training and {len(tokens.validation):,} validation "
        f"tokens, V = {protocol.vocab:,}; {jax.device_count()} × {described['device']}",
        highlight=False,
    )
    text, held_out = jnp.asarray(tokens.train), jnp.asarray(tokens.validation)
    with _progress(console) as progress:
        _initial(preset, schemes, held_out, records, progress)
        _runs(preset, schemes, text, held_out, records, progress)
    return records


def protocol_of(preset: Preset, fingerprint: str) -> Row:
    """All that must agree for two rows to be comparable."""
    device = jax.devices()[0].device_kind
    fixed = {"data": preset.data, "text": fingerprint, "device": device}
    return dataclasses.asdict(preset.protocol) | fixed


def _initial(
    preset: Preset, schemes: list[Scheme], text: jax.Array, records: Records, progress: Progress
) -> None:
    """Measure every scheme before training, at every width."""
    todo = [
        (scheme, width)
        for width, scheme in itertools.product(preset.initial_widths, schemes)
        if not records.find(kind="initial", scheme=scheme.name, width=width)
    ]
    task = progress.add_task("before training", total=len(todo))
    for scheme, width in todo:
        found = statistics.initial(preset.protocol, scheme, width, text)
        identity = {"kind": "initial", "scheme": scheme.name, "width": width}
        records.add(identity | dataclasses.asdict(found))
        progress.advance(task)
    if not todo:
        progress.remove_task(task)


def _runs(
    preset: Preset,
    schemes: list[Scheme],
    text: jax.Array,
    held_out: jax.Array,
    records: Records,
    progress: Progress,
) -> None:
    """Train every scheme at every width, rate and seed."""
    grid = itertools.product(preset.seeds, preset.widths, schemes, preset.rates)
    todo = [run for run in itertools.starmap(Run, grid) if not records.find(**run.identity)]
    steps = preset.protocol.steps
    task = progress.add_task("training steps", total=len(todo) * steps)
    began = time.monotonic()
    for done, run in enumerate(todo, 1):
        progress.update(task, description=f"{run.scheme.name} at {run.rate:g}")
        result = train.run(
            preset.protocol,
            run.scheme,
            run.width,
            run.rate,
            run.seed,
            text,
            held_out,
            on_steps=lambda count: progress.advance(task, count),
        )
        measured = {
            "validation_loss": result.validation_loss,
            "losses": [round(x, 5) for x in result.losses.tolist()],
            "ratios": [float(f"{x:.5g}") for x in result.ratios.tolist()],
        }
        records.add(run.identity | measured)
        left = (time.monotonic() - began) * (len(todo) - done) / done
        progress.console.print(
            f"[{done:2d}/{len(todo)}] {run}  validation {result.validation_loss:.3f}  "
            f"({left / 60:.1f} min left)",
            highlight=False,
            markup=False,
        )
    _finish(progress, task, len(todo) * steps, began)


def _finish(progress: Progress, task: TaskID, steps: int, began: float) -> None:
    if not steps:
        progress.remove_task(task)
        return
    seconds = time.monotonic() - began
    progress.console.print(
        f"{steps} steps in {seconds:.0f} s, {1e3 * seconds / steps:.0f} ms a step with compilation",
        highlight=False,
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
