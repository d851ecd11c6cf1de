"""How far the training is, how fast it goes, and when it has to stop."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def bar(console: Console) -> Progress:
    """A progress bar with the time gone and an estimate of the time left."""
    return Progress(
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class Pace:
    """Counts steps and estimates when the next ones will be done."""

    def __init__(self, total: int, progress: Progress, deadline: float | None) -> None:
        """Begin to count towards `total` steps; `deadline` is a `time.monotonic()`."""
        self._total, self._done = total, 0
        self._progress, self._deadline = progress, deadline
        self._began = time.monotonic()
        self._task = progress.add_task("training steps", total=total, visible=bool(total))

    def name(self, words: str) -> None:
        """Say what is being trained."""
        self._progress.update(self._task, description=words)

    def advance(self, steps: int) -> None:
        """Count steps that were taken."""
        self._done += steps
        self._progress.advance(self._task, steps)

    def say(self, words: str) -> None:
        """Print a line with the share that is done and the time left."""
        seconds = time.monotonic() - self._began
        left = seconds * (self._total - self._done) / max(1, self._done)
        share = f"[{self._done / max(1, self._total):4.0%}]"
        self._print(f"{share} {words}  ({left / 60:.1f} min left)")

    def too_late(self, steps: int) -> bool:
        """Whether so many further steps would end after the deadline, or it has passed already."""
        if self._deadline is None:
            return False
        now = time.monotonic()
        needed = steps * (now - self._began) / self._done if self._done else 0.0
        return now + needed > self._deadline

    def finish(self) -> None:
        """Print the time that was needed."""
        if self._done:
            seconds = time.monotonic() - self._began
            each = 1e3 * seconds / self._done
            self._print(f"{self._done} steps in {seconds:.0f} s, {each:.1f} ms each, all included")

    def _print(self, words: str) -> None:
        self._progress.console.print(words, highlight=False, markup=False)
