"""The tied-embedding study: `python experiments/tied.py --preset small --out runs/small`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if not __package__:  # run as a script: the repository is not on the path
    sys.path.append(str(Path(__file__).resolve().parent.parent))

import jax
from rich.console import Console

from experiments.study import data, devices, outputs, sweep
from experiments.study.errors import StudyError
from experiments.study.presets import PRESETS, Preset
from experiments.study.progress import bar
from experiments.study.protocol import SCHEMES, scheme
from experiments.study.records import Records


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="tied.py",
        description="Compare the scales that a shared embedding table can get.",
        epilog="A killed study goes on where it was when it is started again with the same --out.",
    )
    add = parse.add_argument
    add("--preset", choices=PRESETS, default="small", help="size (default: small)")
    add("--out", type=Path, help="output folder (default: runs/<preset>)")
    what = parse.add_argument_group("text (default: the preset's)")
    what.add_argument("--data", help="stdlib, topics, wikitext-2, or a folder: see README.md there")
    what.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, plain or .xz")
    what.add_argument("--vocab", type=_positive, metavar="V", help="number of tokens")
    grid = parse.add_argument_group("what is trained (default: the preset's)")
    known = ", ".join(SCHEMES)
    grid.add_argument("--schemes", nargs="+", metavar="NAME", help=f"rows among {known}; D' is D′")
    grid.add_argument("--widths", nargs="+", type=_positive, metavar="D", help="widths")
    grid.add_argument("--rates", nargs="+", type=float, metavar="RATE", help="rates of all rows")
    grid.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="seeds")
    grid.add_argument("--layers", type=_positive, metavar="COUNT", help="transformer blocks")
    grid.add_argument(
        "--steps", type=_positive, metavar="COUNT", help="steps, warm-up in proportion"
    )
    grid.add_argument("--batch", type=_positive, metavar="COUNT", help="windows in a step")
    how = parse.add_argument_group("how it is done")
    how.add_argument(
        "--max-hours", type=float, metavar="HOURS", help="begin no run that ends later"
    )
    how.add_argument("--at-once", type=_positive, metavar="COUNT", help="runs trained side by side")
    how.add_argument("--devices", type=_positive, metavar="COUNT", help="devices (default: all)")
    how.add_argument(
        "--compilation-cache", type=Path, metavar="DIR", help="keep compiled code there"
    )
    hosts = parse.add_argument_group("several processes, each started alike but for --process")
    hosts.add_argument("--distributed", action="store_true", help="let JAX find the others")
    hosts.add_argument("--coordinator", metavar="HOST:PORT", help="address of the first process")
    hosts.add_argument("--processes", type=_positive, metavar="COUNT", help="how many there are")
    hosts.add_argument("--process", type=int, metavar="INDEX", help="which this is, from 0")
    return parse


def main(arguments: list[str] | None = None) -> int:
    """Run the study; 0 when it is complete, 2 when something has to be put right first."""
    given = parser().parse_args(arguments)
    out = given.out or Path("runs") / given.preset
    try:
        return study(given, out)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped: start again with --out {out} to go on from here", file=sys.stderr)
        return 130


def study(given: argparse.Namespace, out: Path) -> int:
    """Measure and train everything that `out/runs.jsonl` does not have yet, and write it up."""
    began, hours = time.monotonic(), given.max_hours
    preset = asked_for(given)
    schemes = [scheme(name) for name in preset.schemes]
    if given.distributed or given.coordinator:
        devices.connect(given.coordinator, given.processes, given.process)
    if given.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(given.compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    mesh = devices.mesh_of(given.devices, preset.protocol.batch)
    sweep.make_folder(out)
    console = Console(quiet=not devices.is_first())
    with console.status(f"reading {preset.data}"):
        tokens = data.load(
            preset.data,
            preset.protocol.window,
            out,
            default_vocab=preset.protocol.vocab,
            vocab=given.vocab,
            tokenizer=given.tokenizer,
        )
    preset = preset.changed(vocab=tokens.vocab)
    described = sweep.protocol_of(preset, tokens.fingerprint, mesh)
    records = Records(out / "runs.jsonl", described) if devices.is_first() else None
    if records and records.set_aside:
        console.print(f"the last line of runs.jsonl was cut: moved to {records.set_aside}")
    console.print(
        f"{preset.data}: {len(tokens.train):,} training and {len(tokens.validation):,} validation "
        f"tokens, V = {tokens.vocab:,}; {mesh.size} × {described['device']}",
        highlight=False,
    )
    with bar(console) as progress:
        if records:
            sweep.measure_before_training(preset, schemes, tokens, records, progress)
        deadline = None if hours is None else began + 3600 * hours
        means = sweep.Means(mesh, given.at_once, deadline)
        left = sweep.train_all(preset, schemes, tokens, means, records, progress)
    if records:
        table, files = outputs.write(preset, records, out)
        console.print(f"\n{table}", soft_wrap=True, highlight=False, markup=False)
        written = ", ".join(str(path) for path in files)
        console.print(f"written: {written}", soft_wrap=True, highlight=False, markup=False)
    if left:
        console.print(f"{left} runs are left: start again with --out {out} to go on", markup=False)
    return 0


def asked_for(given: argparse.Namespace) -> Preset:
    """The preset with what the command line changes."""
    return PRESETS[given.preset].changed(
        data=given.data,
        vocab=given.vocab,
        layers=given.layers,
        steps=given.steps,
        batch=given.batch,
        widths=given.widths,
        rates=given.rates,
        seeds=given.seeds,
        schemes=given.schemes,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
