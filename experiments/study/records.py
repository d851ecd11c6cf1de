"""`runs.jsonl`: one line a finished measurement, which survives a killed program."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.study.errors import StudyError

Row = dict[str, Any]


class Records:
    """The finished rows of one protocol, kept in a file.

    The first line holds the protocol; every other line is a row. A row has a `kind`, what
    identifies it (`scheme`, `width` and, for a run, `rate` and `seed`), and what was measured.
    """

    def __init__(self, path: Path, protocol: Row) -> None:
        """Open or create the file; a last line that was cut is set aside beside it."""
        self.path = path
        self.set_aside: Path | None = None
        try:
            lines = self._complete_lines()
            if not lines:
                self._append({"protocol": protocol})
        except OSError as error:
            raise StudyError(
                f"cannot write {path} ({error.strerror}): give a writable folder with --out"
            ) from error
        found = lines[0].get("protocol", {}) if lines else protocol
        if found != protocol:
            raise StudyError(
                f"{path} was written under another protocol: use another --out, or move it away\n"
                f"  in the file: {_differing(found, protocol)}\n"
                f"  asked for:   {_differing(protocol, found)}"
            )
        self.rows = lines[1:]

    def find(self, **identity: Any) -> list[Row]:
        """The rows with these values, in the order in which they were finished."""
        wanted = identity.items()
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted)]

    def add(self, rows: Sequence[Row]) -> None:
        """Keep finished rows, on the disk before this returns."""
        kept = [{key: _jsonable(value) for key, value in row.items()} for row in rows]
        self._append(*kept)
        self.rows += kept

    def _append(self, *lines: Row) -> None:
        text = "".join(json.dumps(x, ensure_ascii=False, allow_nan=False) + "\n" for x in lines)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _complete_lines(self) -> list[Row]:
        """All lines of the file, after a cut last one was moved to `<name>.broken`."""
        text = self.path.read_bytes() if self.path.exists() else b""
        whole, tail = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
        if tail:
            self.set_aside = self.path.with_name(self.path.name + ".broken")
            with self.set_aside.open("ab") as file:
                file.write(tail + b"\n")
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return [self._parse(number, line) for number, line in enumerate(whole.splitlines(), 1)]

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            row = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            row = None
        needed = {"protocol"} if number == 1 else {"kind", "scheme", "width"}
        if not isinstance(row, dict) or not needed <= row.keys():
            raise StudyError(
                f"line {number} of {self.path} is not a row of this study: mend or remove it"
            )
        return row


def _differing(protocol: Row, other: Row) -> str:
    """The entries that the other protocol does not have alike."""
    entries = protocol.items() if isinstance(protocol, dict) else []
    return ", ".join(f"{k} = {v}" for k, v in entries if k not in other or other[k] != v) or "-"


def _jsonable(value: Any) -> Any:
    """Numbers that are not finite become null, in lists too."""
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
