"""What given scales make of the signal: one pass of the analysis, with nothing left to solve."""

from __future__ import annotations

from collections.abc import Set

from anyinit._classify.traits import Source
from anyinit._plan.analysis import Analysis
from anyinit._plan.plan import Plan
from anyinit._propagate.propagate import Record, propagate


def predict(analysis: Analysis, plan: Plan, wanted: Set[int]) -> Record:
    """Second moments of values when every weight has the scale that a plan says.

    Arguments:
        analysis: the analysis of the model.
        plan: its own plan or another one of the same model.
        wanted: the values.
    """
    model, sites = analysis.model, analysis.sites
    graph, traits = model.graph, model.traits
    return propagate(
        graph,
        traits,
        model.signals,
        _scales(analysis, plan),
        analysis.drawn,
        {use.node: use for use in sites.uses.scaled},
        lambda *_: 1.0,
        wanted,
        frozenset(),
        analysis.solution.repeated,
        analysis.solution.pools,
    )


def _scales(analysis: Analysis, plan: Plan) -> dict[Source, float]:
    """The standard deviation of each source; of those that ask for nothing, the analysis's own."""
    scales = dict(analysis.solution.sigma)
    for leaf, item in scales:
        row = plan.weight_by_name.get(analysis.model.parameters[leaf].name)
        if row is not None:
            sigma = row.sigma
            scales[leaf, item] = sigma if isinstance(sigma, float) else sigma[item or 0]
    return scales
