"""What is compared and how: the schemes and the training protocol."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from experiments.study.errors import StudyError

Scale = Callable[[int], float]
"""A number as a function of the width d."""


def one(width: int) -> float:
    """1 at every width."""
    return 1.0


def root(width: int) -> float:
    """√d."""
    return math.sqrt(width)


def inverse_root(width: int) -> float:
    """1/√d."""
    return 1 / math.sqrt(width)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to scale the embedding table, in the initialization and in the forward pass.

    Arguments:
        name: the row's name in every table.
        says: the row in words.
        table_std: standard deviation with which the table is drawn.
        lookup: multiplier of the lookup.
        logits: multiplier of the logits.
        tied: whether the table is the output layer too.
        matched: whether the table's learning rate follows its scale (`anyinit.optax_partition`).
        library: whether `anyinit.flax.init` initializes the whole network.
    """

    name: str
    says: str
    table_std: Scale = one
    lookup: Scale = one
    logits: Scale = one
    tied: bool = True
    matched: bool = False
    library: bool = False


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("A", "tied, σ = 1"),
        Scheme("B", "tied, σ = 0.02", table_std=lambda width: 0.02),
        Scheme("C", "tied, σ = 1/√d, lookup × √d", table_std=inverse_root, lookup=root),
        Scheme("D", "tied, σ = 1, logits × 1/√d", logits=inverse_root),
        Scheme("D′", "D, table's rate × √d", logits=inverse_root, matched=True),
        Scheme("F", "tied, σ = 1/√d", table_std=inverse_root),
        Scheme("E", "untied: lookup σ = 1, output σ = 1/√d", tied=False),
        Scheme("AnyInit-F", "F by anyinit", library=True),
        Scheme("AnyInit-C", "C by anyinit", lookup=root, library=True),
        Scheme("AnyInit-D", "D′ by anyinit", logits=inverse_root, library=True, matched=True),
        Scheme("AnyInit-E", "E by anyinit", tied=False, library=True),
    )
}
PAGE_ROWS = ("A", "B", "C", "D", "D′", "F", "E")
LIBRARY_ROWS = tuple(name for name, scheme in SCHEMES.items() if scheme.library)


def scheme(name: str) -> Scheme:
    """The scheme called `name`; `D'` is D′."""
    try:
        return SCHEMES[name.replace("'", "′")]
    except KeyError:
        known = ", ".join(SCHEMES)
        raise StudyError(f"no scheme is called {name!r}: choose among {known}") from None


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a run is trained and judged; rows are comparable only under one protocol.

    Arguments:
        vocab: number of tokens V.
        layers: transformer blocks.
        window: tokens in a training example.
        batch: examples in a step.
        steps: optimizer steps.
        warmup: steps until the learning rate is reached.
        validation_windows: fixed windows on which the final loss is measured.
        initial_windows: windows on which the statistics before training are measured.
    """

    vocab: int
    layers: int
    window: int
    batch: int
    steps: int
    warmup: int
    validation_windows: int = 64
    initial_windows: int = 16

    @property
    def probes(self) -> tuple[int, ...]:
        """The steps at which the table's two gradients are compared in `table.md`."""
        return tuple(sorted({0, min(100, self.steps - 1), self.steps - 1}))
