"""The predicted second moment of every place of a model, in the order of computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyinit._plan.plan import PlannedMoment
from anyinit._plan.watched import watched

if TYPE_CHECKING:
    from anyinit._plan.analysis import Analysis


def planned_moments(analysis: Analysis) -> tuple[PlannedMoment, ...]:
    """Second moments at the sites of the weights, after additions to streams, and of the outputs.

    Arguments:
        analysis: the analysis of the model.
    """
    moments = analysis.solution.record.moments
    return tuple(
        PlannedMoment(
            place.path,
            place.place,
            place.site,
            place.where,
            moments[value],
            place.at_most,
            place.number,
        )
        for value, places in watched(analysis).items()
        if value in moments
        for place in places
    )
