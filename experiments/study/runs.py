"""What a sweep consists of: runs, and those that are trained side by side."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from experiments.study.presets import Preset
from experiments.study.protocol import Scheme
from experiments.study.records import Row


@dataclasses.dataclass(frozen=True)
class Run:
    """A network to train."""

    scheme: Scheme
    width: int
    rate: float
    seed: int

    @property
    def identity(self) -> Row:
        """What tells its row from all others."""
        where = {"width": self.width, "rate": self.rate, "seed": self.seed}
        return {"kind": "run", "scheme": self.scheme.name} | where

    def __str__(self) -> str:
        named = f"{self.scheme.name:9} d = {self.width}"
        return f"{named}  rate {self.rate:<6g} seed {self.seed}"


def runs_of(preset: Preset, schemes: Sequence[Scheme]) -> list[Run]:
    """The whole grid, one seed after another."""
    return [
        Run(scheme, width, rate, seed)
        for seed, width, scheme in itertools.product(preset.seeds, preset.widths, schemes)
        for rate in preset.grid.of(scheme, width)
    ]


def side_by_side(runs: Sequence[Run], at_once: int) -> list[list[Run]]:
    """Runs of one executable in groups, in the order in which the grid has them.

    A run always has the same company, whatever is left to do: resuming repeats whole groups, and
    so gives the same numbers to the last bit.
    """
    alike: dict[tuple[int, bool], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.width, run.scheme.tied), []).append(run)
    place = {run: number for number, run in enumerate(runs)}
    groups = [
        same[start : start + at_once]
        for same in alike.values()
        for start in range(0, len(same), at_once)
    ]
    return sorted(groups, key=lambda group: place[group[0]])
