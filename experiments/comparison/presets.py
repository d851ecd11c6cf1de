"""How large the comparison is."""

from __future__ import annotations

import dataclasses

from experiments.comparison.catalogue import Sizes
from experiments.comparison.training import Budget


@dataclasses.dataclass(frozen=True)
class Preset:
    """Sizes, and the grid that is trained.

    Arguments:
        sizes: of the tasks.
        budget: of every run.
        text: what the language models read: `stdlib` or `topics`.
        rates: learning rates of every task; the best counts.
        seeds: of the initialization and the batches.
        tasks: names of those that are trained; None for all.
    """

    sizes: Sizes
    budget: Budget
    text: str
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    tasks: tuple[str, ...] | None = None


PRESETS = {
    "smoke": Preset(
        Sizes(width=16, scale=0.25, batch=4, window=8, vocab=300),
        Budget(steps=4, warmup=2, held_out=1),
        text="topics",
        rates=(1e-3, 1e-2),
        seeds=(0, 1),
        tasks=("mlp", "gpt-post-untied"),
    ),
    "full": Preset(
        Sizes(width=64, scale=1.0, batch=16, window=32, vocab=512),
        Budget(steps=300, warmup=30, held_out=16),
        text="stdlib",
        rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        seeds=(0, 1, 2),
    ),
}
