"""Ten small tasks, initialized three ways: `python experiments/tasks.py --preset full`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

if not __package__:  # run as a script: the repository is not on the path
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from experiments.comparison import catalogue, outputs, sweep
from experiments.comparison.presets import PRESETS
from experiments.study import data
from experiments.study.errors import StudyError
from experiments.study.progress import bar
from experiments.study.records import Records
from experiments.study.sweep import make_folder


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="tasks.py",
        description="Compare Flax's default initialization with anyinit's on ten small tasks.",
        epilog="Killed, it goes on where it was when it is started again with the same --out.",
    )
    add = parse.add_argument
    add("--preset", choices=PRESETS, default="full", help="size (default: full)")
    add("--out", type=Path, help="output folder (default: runs/tasks-<preset>)")
    add("--tasks", nargs="+", metavar="NAME", help="names of tasks (default: the preset's)")
    add("--rates", nargs="+", type=float, metavar="RATE", help="learning rates")
    add("--seeds", nargs="+", type=int, metavar="SEED", help="seeds")
    add("--at-once", type=int, metavar="COUNT", help="runs side by side (default: one a core)")
    add("--max-hours", type=float, metavar="HOURS", help="begin no run that ends later")
    return parse


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; 0 when it is written, 2 when something has to be put right first."""
    given = parser().parse_args(arguments)
    out = given.out or Path("runs") / f"tasks-{given.preset}"
    try:
        return compare(given, out)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped: start again with --out {out} to go on from here", file=sys.stderr)
        return 130


def compare(given: argparse.Namespace, out: Path) -> int:
    """Train everything that `out/runs.jsonl` does not have yet, and write it up."""
    began, preset = time.monotonic(), PRESETS[given.preset]
    if given.rates:
        preset = dataclasses.replace(preset, rates=tuple(given.rates))
    if given.seeds:
        preset = dataclasses.replace(preset, seeds=tuple(given.seeds))
    if given.at_once is not None and given.at_once < 1:
        raise StudyError(f"--at-once {given.at_once} runs were asked for: give 1 or more")
    make_folder(out)
    console = Console()
    with console.status(f"reading {preset.text}"):
        sizes = preset.sizes
        tokens = data.load(preset.text, sizes.window, out, default_vocab=sizes.vocab)
    tasks = catalogue.tasks(sizes, tokens)
    wanted = given.tasks or preset.tasks or tuple(tasks)
    if unknown := [name for name in wanted if name not in tasks]:
        raise StudyError(f"there is no task {unknown[0]!r}: give some of {', '.join(tasks)}")
    chosen = {name: task for name, task in tasks.items() if name in wanted}
    records = Records(out / "runs.jsonl", sweep.protocol_of(preset, tokens.fingerprint))
    if records.set_aside:
        console.print(f"the last line of runs.jsonl was cut: moved to {records.set_aside}")
    deadline = None if given.max_hours is None else began + 3600 * given.max_hours
    at_once = given.at_once or os.cpu_count() or 1
    with bar(console) as progress:
        left = sweep.train_all(preset, chosen, records, progress, at_once, deadline)
    table, files = outputs.write(preset, tasks, records, out)
    console.print(f"\n{table}", soft_wrap=True, highlight=False, markup=False)
    written = ", ".join(str(path) for path in files)
    console.print(f"written: {written}", soft_wrap=True, highlight=False, markup=False)
    if left:
        console.print(f"{left} runs are left: start again with --out {out} to go on", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
