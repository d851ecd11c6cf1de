"""Soft caps: a bounded smooth function with a constant factor behind it, on the way out.

30·tanh(x/30) leaves small logits as they are: what counts is the slope at zero of the whole
composed function, in however many primitives it is written.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anyinit._graph import primitives
from anyinit._rules import evaluate
from anyinit._sites.sums import Sums

# Far out on either side, and around zero. Written with exponentials a cap overflows far out: what
# is finite there decides.
_FAR = np.logspace(1.5, 8.0, 27)
_GRID = np.concatenate([-_FAR, [-1e-3, 0.0, 1e-3], _FAR])


@dataclasses.dataclass(frozen=True)
class SoftCap:
    """A soft cap between two values.

    Arguments:
        value: where the composed function ends.
        slope: its slope at zero.
    """

    value: int
    slope: float


def soft_cap(sums: Sums, start: int) -> SoftCap | None:
    """The soft cap that begins at a value, if there is one."""
    graph, traits = sums.graph, sums.traits
    inside: dict[int, np.ndarray] = {start: _GRID}
    ends: list[int] = []
    for node in graph.nodes[_first_consumer(sums, start) :]:
        reached = [value for value in node.inputs if value in inside]
        if not reached:
            continue
        others = [value for value in node.inputs if value not in inside]
        univariate = node.primitive in primitives.ELEMENTWISE | primitives.IDENTITY | (
            primitives.SHAPE
        ) and all(traits.constant(value) is not None for value in others)
        if not univariate or node.primitive in primitives.COMPARISONS:
            ends += reached
            continue
        if node.primitive in primitives.SHAPE:
            # The grid is no signal whose elements could change places.
            inside[node.outputs[0]] = inside[reached[0]]
            continue
        numbers = [inside.get(v, traits.known.get(v, _GRID)) for v in node.inputs]
        results, assumed = evaluate(graph, traits, node, numbers)
        if assumed:
            ends += reached
            continue
        inside.update(zip(node.outputs, results, strict=True))
    ends += [value for value in inside if value in graph.outputs]
    if len(set(ends)) != 1 or ends[0] == start:
        return None
    value = ends[0]
    if not _has_factor_behind(sums, start, value, inside):
        return None
    f = np.broadcast_to(np.asarray(inside[value], dtype=np.float64), _GRID.shape)
    low, high = _limit(f[: _FAR.size]), _limit(f[-_FAR.size :])
    left, middle, right = f[_FAR.size : _FAR.size + 3]
    bounded = low is not None and high is not None and low != high
    below, above = (middle - left) / 1e-3, (right - middle) / 1e-3
    smooth = below != 0 and np.isclose(below, above, rtol=1e-2)
    return SoftCap(value, float(above + below) / 2) if bounded and smooth else None


def _limit(far: np.ndarray) -> float | None:
    """What a function approaches far out, if the last two finite numbers agree."""
    finite = far[np.isfinite(far)]
    settled = finite.size > 2 and np.isclose(finite[-2], finite[-1], rtol=1e-2)
    return float(finite[-1]) if settled else None


def _first_consumer(sums: Sums, value: int) -> int:
    return min(sums.graph.consumers[value], default=len(sums.graph.nodes))


def _has_factor_behind(sums: Sums, start: int, value: int, inside: dict[int, np.ndarray]) -> bool:
    """Whether the function ends in a constant factor."""
    while True:
        producer = sums.graph.producers[value]
        if producer < 0 or value == start:
            return False
        node = sums.graph.nodes[producer]
        moving = [v for v in node.inputs if v in inside]
        others = [v for v in node.inputs if v not in inside]
        if node.primitive in ("mul", "div") and len(moving) == 1 and others:
            factor = sums.traits.constant(others[0])
            if node.primitive == "div" and node.inputs[0] != moving[0]:
                return False
            if factor is not None and abs(factor) != 1.0:
                return True
        elif node.primitive not in primitives.LAYOUT | primitives.ADDITIONS:
            return False
        value = moving[0]
