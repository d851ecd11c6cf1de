"""The page's initial losses, d = 128 to 1024, on uniform random tokens at V = 33,527."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from experiments.study.page import INITIAL_LOSS
from experiments.study.protocol import PAGE_ROWS, SCHEMES, Protocol
from experiments.study.statistics import Initial, initial

VOCAB, WIDTHS = 33_527, (128, 256, 512, 1024)
PROTOCOL = Protocol(vocab=VOCAB, layers=4, window=128, batch=32, steps=800, warmup=50)


def measure(name: str, width: int) -> Initial:
    """A scheme's statistics before training, on random tokens."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, 20_000, dtype=np.int32)
    return initial(PROTOCOL, SCHEMES[name], width, jax.numpy.asarray(tokens))


def main() -> None:
    """Print ours beside the page's."""
    print(f"V = {VOCAB:,}, uniform random tokens; the page's initial loss in brackets")
    for name in PAGE_ROWS:
        print(f"\n{name}: {SCHEMES[name].says}")
        for width in WIDTHS:
            found = measure(name, width)
            ends = {WIDTHS[0]: INITIAL_LOSS[name][0], WIDTHS[-1]: INITIAL_LOSS[name][1]}
            page = (
                f"  ({ends[width]:g}, {found.loss / ends[width] - 1:+.1%})" if width in ends else ""
            )
            print(
                f"  d = {width:4}  logit std {found.logit_std:6.2f}  "
                f"own-token logit {found.own_token:7.2f}  initial loss {found.loss:7.2f}{page}"
            )


if __name__ == "__main__":
    main()
