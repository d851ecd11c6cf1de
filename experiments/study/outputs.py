"""The files that a study leaves beside `runs.jsonl`."""

from __future__ import annotations

from pathlib import Path

from experiments.study import tables
from experiments.study.presets import Preset
from experiments.study.records import Records


def write(preset: Preset, records: Records, out: Path) -> tuple[str, list[Path]]:
    """Write `table.md`, `init.csv` and the figures; the table, and all files of the study."""
    table = tables.markdown(preset, records)
    files = [out / "table.md", records.path, out / "init.csv"]
    files[0].write_text(table, encoding="utf-8")
    files[2].write_text(tables.initial_csv(records), encoding="utf-8")
    try:
        from experiments.study import figures
    except ImportError:  # a bare machine; the rows are all that a later call needs
        return table + "\nNo figures: matplotlib is not installed.\n", files
    return table, files + figures.write(preset, records, out)
