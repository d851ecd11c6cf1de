"""The files that a comparison leaves beside `runs.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.comparison import tables
from experiments.comparison.catalogue import Task
from experiments.comparison.presets import Preset
from experiments.study.records import Records


def write(
    preset: Preset, tasks: Mapping[str, Task], records: Records, out: Path
) -> tuple[str, list[Path]]:
    """Write `table.md` and the figure; the table, and all files of the comparison."""
    table = tables.markdown(preset, tasks, records)
    files = [records.path, out / "table.md"]
    files[1].write_text(table, encoding="utf-8")
    try:
        from experiments.comparison import figures
    except ImportError:  # a bare machine; the rows are all that a later call needs
        return table + "\nNo figure: matplotlib is not installed.\n", files
    return table, files + figures.write(preset, tasks, records, out)
