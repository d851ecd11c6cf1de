"""How many runs fit side by side."""

from __future__ import annotations

import jax

from experiments.study.loss import block_of_logits
from experiments.study.protocol import Protocol
from experiments.study.runs import Run

MOST = 8
SHARE = 0.5
"""Of the device's memory: the estimate is rough, and running out ends the study."""


def runs_at_once(protocol: Protocol, widest: int) -> int:
    """1 on a CPU, where runs side by side are no faster; elsewhere as many as fit."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return 1
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    return max(1, min(MOST, int(SHARE * memory / bytes_of_one(protocol, widest))))


def bytes_of_one(protocol: Protocol, width: int) -> int:
    """About what one run needs, in float32: parameters, logits and what the blocks keep."""
    tokens, heads = protocol.batch * protocol.window, max(width // 64, 2)
    params = 2 * protocol.vocab * width + 12 * protocol.layers * width**2
    of_block = 24 * width + 4 * heads * protocol.window
    kept = tokens * protocol.layers * of_block
    return 4 * (8 * params + 4 * block_of_logits() + kept)


def widest(runs: list[Run]) -> int:
    """The largest width among the runs."""
    return max((run.width for run in runs), default=1)
