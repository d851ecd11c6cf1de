"""The tied-embedding study: `python experiments/tied.py --preset small --out runs/small`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

if not __package__:  # run as a script: the repository is not on the path
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from experiments.study import figures, tables
from experiments.study.data import SOURCES
from experiments.study.errors import StudyError
from experiments.study.protocol import PAGE_ROWS, PRESETS, SCHEMES, scheme
from experiments.study.sweep import sweep


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="tied.py",
        description="Compare the scales that a shared embedding table can get.",
        epilog="A killed study goes on where it was when it is started again with the same --out.",
    )
    parse.add_argument("--preset", choices=PRESETS, default="small", help="size (default: small)")
    parse.add_argument("--out", type=Path, help="output folder (default: runs/<preset>)")
    parse.add_argument("--data", choices=SOURCES, help="text (default: the preset's)")
    parse.add_argument(
        "--schemes",
        nargs="+",
        metavar="NAME",
        default=PAGE_ROWS,
        help=f"rows among {', '.join(SCHEMES)} (default: {' '.join(PAGE_ROWS)}); D' is D′",
    )
    parse.add_argument("--rates", nargs="+", type=float, metavar="RATE", help="learning rates")
    parse.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="seeds")
    return parse


def main(arguments: list[str] | None = None) -> int:
    """Run the study; 0 when it is complete, 2 when something has to be put right first."""
    given = parser().parse_args(arguments)
    console = Console()
    preset = PRESETS[given.preset]
    preset = dataclasses.replace(
        preset,
        data=given.data or preset.data,
        rates=tuple(given.rates or preset.rates),
        seeds=tuple(given.seeds or preset.seeds),
    )
    out = given.out or Path("runs") / given.preset
    try:
        records = sweep(preset, [scheme(name) for name in given.schemes], out, console)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped: start again with --out {out} to go on from here", file=sys.stderr)
        return 130
    table = tables.write(preset, records)
    (out / "table.md").write_text(table, encoding="utf-8")
    drawn = figures.write(preset, records, out)
    console.print(f"\n{table}", soft_wrap=True, highlight=False, markup=False)
    written = ", ".join(str(path) for path in (out / "table.md", records.path, *drawn))
    console.print(f"written: {written}", soft_wrap=True, highlight=False, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
