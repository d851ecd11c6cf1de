"""The whole study: what is still to do, done one after another and kept at once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from rich.progress import Progress

from experiments.study import devices, statistics
from experiments.study.capacity import runs_at_once, widest
from experiments.study.errors import StudyError
from experiments.study.presets import Preset
from experiments.study.progress import Pace
from experiments.study.protocol import Scheme
from experiments.study.records import Records, Row
from experiments.study.runs import Run, runs_of, side_by_side
from experiments.study.tokens import Tokens
from experiments.study.train import train


@dataclasses.dataclass(frozen=True)
class Means:
    """With what a sweep is done, apart from what it measures.

    Arguments:
        mesh: devices that share each batch.
        at_once: runs side by side, or None for as many as fit.
        deadline: no run is begun that would end after this `time.monotonic()`.
    """

    mesh: Mesh
    at_once: int | None = None
    deadline: float | None = None


def make_folder(out: Path) -> None:
    """Make the output folder, and see that it can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StudyError(
            f"cannot write in the folder {out} ({error.strerror}): give a writable one with --out"
        ) from error


def protocol_of(preset: Preset, fingerprint: str, mesh: Mesh) -> Row:
    """All that must agree for two rows to be comparable."""
    kind = mesh.devices.flat[0].device_kind
    device = {"device": kind, "devices": mesh.size}
    return dataclasses.asdict(preset.protocol) | {"text": fingerprint} | device


def measure_before_training(
    preset: Preset, schemes: Sequence[Scheme], tokens: Tokens, records: Records, progress: Progress
) -> None:
    """Measure every scheme before training, at every width."""
    todo = [
        (scheme, width)
        for width, scheme in itertools.product(preset.initial_widths, schemes)
        if not records.find(kind="initial", scheme=scheme.name, width=width)
    ]
    text = jax.device_put(tokens.validation)
    task = progress.add_task("before training", total=len(todo), visible=bool(todo))
    for scheme, width in todo:
        found = statistics.initial(preset.protocol, scheme, width, text)
        identity = {"kind": "initial", "scheme": scheme.name, "width": width}
        records.add([identity | dataclasses.asdict(found)])
        progress.advance(task)


def train_all(
    preset: Preset,
    schemes: Sequence[Scheme],
    tokens: Tokens,
    means: Means,
    records: Records | None,
    progress: Progress,
) -> int:
    """Train every scheme at every width, rate and seed; how many runs are left undone.

    Arguments:
        preset: what is trained.
        schemes: the rows.
        tokens: the text.
        means: devices and time.
        records: where the rows are kept; None in all processes but the first.
        progress: the bar.
    """
    grid = runs_of(preset, schemes)
    at_once = means.at_once or runs_at_once(preset.protocol, widest(grid))
    missing = [records is None or not records.find(**run.identity) for run in grid]
    left = {run for run, todo in zip(grid, devices.agreed(missing), strict=True) if todo}
    groups = [group for group in side_by_side(grid, at_once) if left & set(group)]
    texts = [devices.replicate(part, means.mesh) for part in (tokens.train, tokens.validation)]
    pace = Pace(preset.protocol.steps * sum(map(len, groups)), progress, means.deadline)
    for group in _in_time(groups, pace, preset.protocol.steps):
        pace.name(f"{group[0].scheme.name} at {group[0].rate:g}")
        results = train(preset.protocol, group, means.mesh, at_once, *texts, on_steps=pace.advance)
        rows = [
            run.identity
            | {
                "validation_loss": result.validation_loss,
                "losses": [round(x, 5) for x in result.losses.tolist()],
                "ratios": [float(f"{x:.5g}") for x in result.ratios.tolist()],
            }
            for run, result in zip(group, results, strict=True)
        ]
        if records is not None:
            records.add([row for run, row in zip(group, rows, strict=True) if run in left])
        for run, result in zip(group, results, strict=True):
            pace.say(f"{run}  {outcome(result.validation_loss)}")
        left -= set(group)
    pace.finish()
    return len(left)


def outcome(loss: float) -> str:
    """A run's end in words."""
    return f"validation {loss:.3f}" if np.isfinite(loss) else "diverged"


def _in_time(groups: list[list[Run]], pace: Pace, steps: int) -> Iterator[list[Run]]:
    """The groups that can end in time; all processes agree on where to stop."""
    for group in groups:
        if devices.agreed(pace.too_late(steps * len(group))):
            return
        yield group
