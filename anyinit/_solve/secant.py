"""How far to move a scale whose weight is used several times."""

from __future__ import annotations

import dataclasses

# The largest change of a logarithm in one pass: far from the solution the response is no line.
_LARGEST = 5.0
# A response that is weaker than this says nothing.
_LEAST = 0.25


@dataclasses.dataclass(frozen=True)
class Move:
    """A move of the logarithm of a scale: how far, and what was asked for before it."""

    step: float
    asked: float


def next_move(asked: float, last: Move | None, damping: float) -> Move:
    """The next move of log σ, by the secant through the last one.

    A weight that is used K times in a row changes what is asked for by K steps at once: moving by
    what is asked would overshoot further every time.

    >>> first = next_move(1.0, None, damping=1.0)  # the next pass asks for -2: overshot threefold
    >>> next_move(-2.0, first, damping=1.0).step
    -0.6666666666666666

    Arguments:
        asked: logarithm of the factor that the uses ask for, their mean.
        last: the last move, if there was one.
        damping: the share of what is asked that is done while nothing is known of the response.

    Returns:
        The move to make.
    """
    step = damping * asked
    if last is not None and last.step != 0.0:
        response = (asked - last.asked) / last.step
        if response < -_LEAST:
            step = -asked / response
    return Move(min(max(step, -_LARGEST), _LARGEST), asked)
