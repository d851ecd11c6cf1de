"""How large a study is: a protocol and the grid that is run under it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.study.protocol import LIBRARY_ROWS, PAGE_ROWS, Protocol, Scheme

WARMUP_SHARE = 50 / 800  # the page's


@dataclasses.dataclass(frozen=True)
class Grid:
    """Which rates a scheme is trained at: the same for all, with exceptions.

    Arguments:
        rates: the learning rates of every scheme that is not named below.
        extra: further rates, by scheme and width.
        matched: the rates of the schemes whose table has a rate of its own.
    """

    rates: tuple[float, ...]
    extra: tuple[tuple[str, int, float], ...] = ()
    matched: tuple[float, ...] | None = None

    def of(self, scheme: Scheme, width: int) -> tuple[float, ...]:
        """The rates of one scheme at one width."""
        if scheme.matched and self.matched is not None:
            return self.matched
        return self.rates + tuple(r for n, w, r in self.extra if (n, w) == (scheme.name, width))


@dataclasses.dataclass(frozen=True)
class Preset:
    """A protocol and the grid that is run under it.

    Arguments:
        protocol: how each run is trained.
        data: source of the text.
        initial_widths: widths at which the network is measured before training.
        widths: widths that are trained.
        grid: learning rates; the best of them counts.
        seeds: seeds of initialization and batches.
        schemes: names of the rows.
    """

    protocol: Protocol
    data: str
    initial_widths: tuple[int, ...]
    widths: tuple[int, ...]
    grid: Grid
    seeds: tuple[int, ...] = (0,)
    schemes: tuple[str, ...] = PAGE_ROWS

    def changed(
        self,
        *,
        data: str | None = None,
        vocab: int | None = None,
        layers: int | None = None,
        steps: int | None = None,
        batch: int | None = None,
        widths: Sequence[int] | None = None,
        rates: Sequence[float] | None = None,
        seeds: Sequence[int] | None = None,
        schemes: Sequence[str] | None = None,
    ) -> Preset:
        """This preset with what is not None put in; the warm-up keeps its share of the steps."""
        numbers: dict[str, int | None] = {"vocab": vocab, "layers": layers, "batch": batch}
        if steps is not None:
            numbers |= {"steps": steps, "warmup": max(1, round(WARMUP_SHARE * steps))}
        protocol = dataclasses.replace(self.protocol, **_given(numbers))
        fields = {
            "data": data,
            "widths": widths,
            "grid": None if rates is None else Grid(tuple(rates)),
            "seeds": seeds,
            "schemes": schemes,
        }
        found = {k: tuple(v) if isinstance(v, list) else v for k, v in _given(fields).items()}
        return dataclasses.replace(self, protocol=protocol, **found)


def _given(fields: dict) -> dict:
    return {key: value for key, value in fields.items() if value is not None}


PRESETS = {
    "smoke": Preset(
        Protocol(vocab=512, layers=1, window=16, batch=4, steps=20, warmup=2),
        data="topics",
        initial_widths=(16, 32),
        widths=(32,),
        grid=Grid((1e-2,)),
    ),
    "small": Preset(
        Protocol(vocab=2048, layers=2, window=64, batch=16, steps=300, warmup=18),
        data="stdlib",
        initial_widths=(64, 128, 256),
        widths=(128,),
        grid=Grid((3e-3, 1e-2)),  # 1e-3 is no scheme's best, and does not fit into four minutes
    ),
    "full": Preset(
        Protocol(vocab=33_527, layers=4, window=128, batch=32, steps=800, warmup=50),
        data="wikitext-2",
        initial_widths=(128, 256, 512, 1024),
        widths=(128, 512),
        grid=Grid(
            (3e-4, 1e-3, 3e-3, 1e-2),
            extra=(("A", 128, 3e-2), ("A", 512, 3e-2), ("D", 128, 3e-2)),
            matched=(3e-4, 1e-3, 3e-3),
        ),
        seeds=(0, 1),
        schemes=PAGE_ROWS + LIBRARY_ROWS,
    ),
}
