"""Where each weight is measured, and what second moment it should deliver there.

Sites, targets and shares are those of the plan. Only where the analysis has to assume the size of
another signal is more asked for than the plan says: a product that leads on to the output is
measured there, a gate on the way to a residual stream is measured behind it, and two sides of a
product give up what the product is measured to exceed 1 by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anyinit._classify.traits import Source
from anyinit._graph.graph import Node
from anyinit._sites.sites import Site
from anyinit._sites.uses import Use


@dataclasses.dataclass(frozen=True)
class MeasuringPoint:
    """A value at which what one use delivers is measured.

    Arguments:
        way: the nodes from the use to there.
        end: the value.
        goal: the second moment wanted.
    """

    way: tuple[Node, ...]
    end: int
    goal: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """How one site of a use is measured.

    Arguments:
        site: the site.
        place: where it is measured.
        output: the output that a product with another signal leads on to: it decides.
        at_most: a place behind a gate, whose goal is only not to be exceeded.
        matched: sources of a tied table that the lookup is to match; their scale moves the goal.
        masked: the gain from the use to the output, where a mask lies between the two.
        steps: whether the output collects what the same weight makes in every step of a loop: it
            is then measured as a whole.
    """

    site: Site
    place: MeasuringPoint
    output: MeasuringPoint | None = None
    at_most: MeasuringPoint | None = None
    matched: tuple[Source, ...] = ()
    masked: float | None = None
    steps: bool = False


@dataclasses.dataclass(frozen=True)
class Measured:
    """A use of weights whose scale is to be found.

    Arguments:
        use: the use.
        measurements: one for each of its sites.
        sources: the sources that may be scaled.
        single: whether they are used nowhere else, so that their scale is set here.
        limit: the largest factor allowed (recurrent weights).
    """

    use: Use
    measurements: tuple[Measurement, ...]
    sources: tuple[Source, ...]
    single: bool
    limit: float | None


@dataclasses.dataclass(frozen=True)
class Excess:
    """A product of two signals that are both made by weights.

    Arguments:
        product: the product's value.
        place: where it is measured, without what is added to it.
        exact: whether the goal is to be met (at the output), or only not to be exceeded.
        sides: the uses behind each side.
        shared: whether their weights have several uses: the product is then not corrected where it
            is made, but its sides are asked of together.
    """

    product: int
    place: MeasuringPoint
    exact: bool
    sides: tuple[tuple[int, ...], ...]
    shared: bool = False


@dataclasses.dataclass(frozen=True)
class Places:
    """All that an empirical pass measures.

    Arguments:
        uses: by the index of the use's node.
        excesses: by the product's value.
        shared: the deciding sites of each source that has several uses.
        carriers: all uses of such sources, with the power of each source's scale, by the index of
            the use's node.
    """

    uses: Mapping[int, Measured] = dataclasses.field(default_factory=dict)
    excesses: Mapping[int, Excess] = dataclasses.field(default_factory=dict)
    shared: Mapping[Source, tuple[Site, ...]] = dataclasses.field(default_factory=dict)
    carriers: Mapping[int, tuple[Use, Mapping[Source, float]]] = dataclasses.field(
        default_factory=dict
    )
