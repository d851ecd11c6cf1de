"""What each value of a graph *is*, read off the structure alone.

One forward pass gives every value a :class:`Trait`: whether it is known, drawn, random noise, an
opaque integer or a signal; how it scales with the value it was computed from; whether it holds a
convex combination's weights or one-hot rows. Numbers that depend on no weight and no float input
(constants, masks, positions, dropout masks) are evaluated here, once.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

import numpy as np


class Role(enum.IntEnum):
    """What a value is, from the most to the least known."""

    KNOWN = 0  # a number or array of the model itself
    NOISE = 1  # depends on random keys only
    OPAQUE = 2  # integers of the input, and what is computed from them alone
    WEIGHT = 3  # drawn weights, through constant factors and layout
    DERIVED = 4  # drawn weights, through anything else
    SIGNAL = 5  # everything computed from inputs and weights


Source = tuple[int, int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """How indices were chosen: ``kept`` of every ``count`` elements.

    Arguments:
        among: the origin of the value that was looked at.
        count: number of elements that were compared.
        kept: number of indices that were kept of them.
        largest: whether the largest were kept, not the smallest.
    """

    among: int
    count: int
    kept: int
    largest: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Trait:
    """The structural facts of one value.

    Arguments:
        role: see :class:`Role`.
        origin: the value this one equals up to dtype, shape and broadcasting.
        base: the value this one is a homogeneous function of.
        degree: its degree: multiplying ``base`` by s > 0 multiplies this by s^degree.
        reduced: number of reductions over axes between ``base`` and this.
        sources: for a WEIGHT or DERIVED value, the drawn leaves: (argument, item or None).
        power: for a WEIGHT value, the power of s that multiplies it when all its sources are
            multiplied by s: 2 for the product of two weights.
        normalizes: the base that this value's node has just made scale-free, if any.
        shifted: the origin this one equals up to a statistic of it that was added.
        sum_of: the origin whose sum over an axis this is, if any.
        sum_axes: the axes of that sum.
        exp_of: the shifted origin whose exponential this is, if any.
        log_sum_of: the shifted origin y for which this is log Σ exp y, if any.
        convex: axes over which these are the weights of a convex combination (empty: some axis).
        softmax_of: the origin that these weights of a convex combination are a softmax of.
        chosen: for indices of the largest (smallest) elements of a value, how they were chosen.
        one_hot: whether these are one-hot rows.
        at_most: whether the second moment is known from above only.
        is_zero: whether this is zero at initialization whatever is drawn.
        gain: whether it is known and comes from a parameter that is not a scalar.
        features: for each axis, whether it is a feature axis.
        over_positions: whether the reductions ran over no feature axis.
    """

    role: Role
    origin: int
    base: int
    degree: float = 1.0
    reduced: int = 0
    sources: tuple[Source, ...] = ()
    power: int = 1
    normalizes: int | None = None
    shifted: int | None = None
    sum_of: int | None = None
    sum_axes: tuple[int, ...] = ()
    exp_of: int | None = None
    log_sum_of: int | None = None
    convex: tuple[int, ...] | None = None
    softmax_of: int | None = None
    chosen: Chosen | None = None
    one_hot: bool = False
    at_most: bool = False
    is_zero: bool = False
    gain: bool = False
    features: tuple[bool, ...] = ()
    over_positions: bool = False

    @property
    def unshifted(self) -> int:
        """The origin, before a statistic of it was added."""
        return self.origin if self.shifted is None else self.shifted

    @property
    def moves(self) -> bool:
        """Whether drawn weights or float inputs enter."""
        return self.role >= Role.WEIGHT


@dataclasses.dataclass(frozen=True)
class Argument:
    """How an argument of the traced function enters the analysis.

    Arguments:
        role: KNOWN (a constant parameter), WEIGHT (drawn), OPAQUE, NOISE or SIGNAL.
        samples: the numbers of a KNOWN argument.
        gain: whether it is a constant parameter with more than one element.
        array: the whole array of a KNOWN argument, where it is small and not uniform.
    """

    role: Role
    samples: np.ndarray | None = None
    gain: bool = False
    array: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of all values, and the numbers that no weight changes.

    Arguments:
        of: trait of each value; ``None`` for values that are never computed.
        known: samples of every value whose role is KNOWN, NOISE or OPAQUE.
        absorbed: nodes inside a log-softmax, which as a whole only shifts its input.
        normalized: bases that are normalized somewhere.
        independent_tokens: whether an average over tokens shrinks what it averages.
    """

    of: Sequence[Trait | None]
    known: Mapping[int, np.ndarray]
    absorbed: frozenset[int] = frozenset()
    normalized: frozenset[int] = frozenset()
    independent_tokens: bool = False

    def __getitem__(self, value: int) -> Trait:
        trait = self.of[value]
        assert trait is not None, f"value {value} is never computed"
        return trait

    def class_axis(self, value: int) -> int:
        """The last axis of features of a value: of logits, the one that a softmax is over."""
        trait = self.of[value]
        flags = () if trait is None else trait.features
        return max((axis for axis, flag in enumerate(flags) if flag), default=-1)

    def constant(self, value: int) -> float | None:
        """The number that every element of a value equals, if it is known and uniform."""
        if self[value].role is not Role.KNOWN:
            return None
        samples = self.known[value]
        return float(samples) if samples.ndim == 0 and samples.dtype.kind in "fiub" else None
