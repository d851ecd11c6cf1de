"""How errors in the signal's scale grow from layer to layer, and the verdict on it."""

from __future__ import annotations

import dataclasses
import enum
import math

# An error that grows by √2 a layer is ten times as large after seven layers; one that has grown
# sevenfold at that rate is ten times as large after another.
_FAST, _LARGE = math.sqrt(2.0), 7.0

# What counts as no change: a layer, and in all.
_MARGIN, _SMALL = 0.05, 1.5


class StabilityVerdict(enum.Enum):
    """What becomes of a small relative error in the signal's second moment.

    >>> [StabilityVerdict.of(growth, depth=6).value for growth in (64.0, 1.0)]
    ['unstable', 'marginal']
    """

    CONTRACTIVE = "contractive"
    MARGINAL = "marginal"
    EXPANSIVE = "expansive"
    UNSTABLE = "unstable"

    @classmethod
    def of(cls, growth: float, depth: int) -> StabilityVerdict:
        """The verdict on a growth over a number of layers.

        Arguments:
            growth: factor by which the error has grown.
            depth: nonlinear layers it went through. One alone does not compound.
        """
        rate = growth ** (1 / max(depth, 1))
        if rate < 1 - _MARGIN:
            return cls.CONTRACTIVE
        if depth < 2 or rate <= 1 + _MARGIN or growth < _SMALL:
            return cls.MARGINAL
        return cls.UNSTABLE if rate >= _FAST and growth >= _LARGE else cls.EXPANSIVE


@dataclasses.dataclass(frozen=True)
class Nonlinearity:
    """How one elementwise function answers to an error in what enters it.

    Arguments:
        function: the primitives that it is made of.
        where: ``file.py:line`` of the function.
        count: number of sites at which it acts.
        moment: second moment E[z²] of what enters.
        slope: χ, the slope of log E[f(z)²] against log E[z²] for normal z: 1 for ReLU and other
            homogeneous functions, 2 for squares, less than 1 where the function saturates.
    """

    function: str
    where: str
    count: int
    moment: float
    slope: float

    @property
    def verdict(self) -> StabilityVerdict:
        """What a stack of eight layers with this function and no norm would do to an error."""
        return StabilityVerdict.of(max(self.slope, 0.0) ** 8, 8)


@dataclasses.dataclass(frozen=True)
class Stability:
    """How a small relative error in the signal's second moment grows over depth.

    >>> stack = Stability(growth=32.0, depth=5)
    >>> stack.verdict.value, stack.rate, round(stack.tenfold_depth, 2)
    ('unstable', 2.0, 3.32)

    Arguments:
        growth: factor by which an error at one layer has grown where it is largest: at the output,
            or where a normalization takes it off.
        depth: nonlinear layers that it has gone through by then.
        nonlinearities: the model's elementwise nonlinearities.
    """

    growth: float
    depth: int
    nonlinearities: tuple[Nonlinearity, ...] = ()

    @property
    def verdict(self) -> StabilityVerdict:
        """Whether errors fade, stay, or grow from layer to layer."""
        return StabilityVerdict.of(self.growth, self.depth)

    @property
    def rate(self) -> float:
        """Factor by which the error grows a nonlinear layer, in the geometric mean."""
        return float(self.growth ** (1 / max(self.depth, 1)))

    @property
    def tenfold_depth(self) -> float | None:
        """Nonlinear layers after which the error is ten times as large; ``None`` where never."""
        if self.verdict in (StabilityVerdict.CONTRACTIVE, StabilityVerdict.MARGINAL):
            return None
        return math.log(10) / math.log(self.rate)
