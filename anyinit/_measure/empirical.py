"""``mode="empirical"``: the plan's scales, corrected by what a real batch measures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from anyinit._classify.traits import Source
from anyinit._measure.compiled import Program, batch_findings, program_of
from anyinit._measure.correct import corrected_plan
from anyinit._measure.find_places import find_places
from anyinit._measure.measuring_pass import BatchPass, Seen
from anyinit._measure.places import Places
from anyinit._plan.analysis import Analysis
from anyinit._plan.plan import Plan
from anyinit._plan.watched import watched
from anyinit._propagate.propagate import NonFiniteError
from anyinit._solve.secant import Move, next_move

_PASSES = 16
_UNDAMPED = 4
# A weight with several uses counts as settled when all second moments are as close as this.
_SETTLED = 0.01


def measured_plan(analysis: Analysis, leaves: Sequence[Any], arrays: Sequence[Any]) -> Plan:
    """The plan of a model, with every scale corrected by measuring.

    Arguments:
        analysis: the analysis of the model.
        leaves: an array for each parameter, scaled as the analysis plans.
        arrays: an array for each further input of the graph.

    Raises:
        NonFiniteError: what a weight delivers is NaN or infinite.
    """
    places = find_places(analysis)
    plan = dataclasses.replace(
        analysis.plan, findings=(*analysis.plan.findings, *batch_findings(analysis, arrays))
    )
    analysis = dataclasses.replace(analysis, plan=plan)
    program = compiled_pass(analysis, places, leaves, arrays)
    factors: dict[Source, float] = dict.fromkeys(places.shared, 1.0)
    moves: dict[Source, Move] = {}
    limits = _limits(places)
    unsettled = None
    for count in range(_PASSES):
        scales = np.asarray([factors[source] for source in places.shared], np.float32)
        seen = jax.device_get(program(scales))
        _check_finite(analysis, places, seen)
        asked = {
            source: min(step, math.log(limits[source] / factors[source]))
            for source, step in _asked(places, seen).items()
        }
        change = max(map(abs, asked.values()), default=0.0)
        unsettled = change if 2 * change > _SETTLED else None
        if unsettled is None or count == _PASSES - 1:
            break
        damping = 1.0 if count < _UNDAMPED else 0.5
        moves = {s: next_move(step, moves.get(s), damping) for s, step in asked.items()}
        factors = {s: min(factors[s] * math.exp(moves[s].step), limits[s]) for s in factors}
    return corrected_plan(analysis, places, seen, factors, unsettled)


def compiled_pass(
    analysis: Analysis, places: Places, leaves: Sequence[Any], arrays: Sequence[Any]
) -> Program:
    """One pass as a function of the factors of the weights with several uses.

    Arguments:
        analysis: the analysis of the model.
        places: what is measured.
        leaves: an array for each parameter, scaled as the analysis plans.
        arrays: an array for each further input of the graph.
    """
    model, sources = analysis.model, list(places.shared)

    def one_pass(values: dict[int, Any], scales: Any) -> Seen:
        factors = {source: scales[place] for place, source in enumerate(sources)}
        walk = BatchPass(model.graph, model.traits, places, values, factors)
        walk.run()
        for value in watched(analysis):
            walk.seen.totals[value] = walk.total(value)
        return walk.seen

    return program_of(model.graph, leaves, arrays, one_pass)


def _check_finite(analysis: Analysis, places: Places, seen: Seen) -> None:
    for node, found in seen.delivered.items():
        if all(np.isfinite(value) for value in found):
            continue
        use = places.uses[node].use
        path = analysis.model.parameters[use.sources[0][0]].name
        raise NonFiniteError(
            f"What {path} delivers on this batch is NaN or infinite (first at "
            f"{analysis.model.graph.nodes[node].where or 'an unknown line'}); nothing was changed. "
            "Check the batch, and the functions before that line (a division by zero, a logarithm "
            "or root of negative numbers)."
        )


def _asked(places: Places, seen: Seen) -> dict[Source, float]:
    """Logarithm of what the sites of each weight with several uses ask to multiply it by."""
    by_site = {
        id(measurement.site): float(step)
        for node, steps in seen.steps.items()
        for measurement, step in zip(places.uses[node].measurements, steps, strict=True)
    }
    for product, factor in seen.excess.items():
        excess = places.excesses[product]
        if excess.shared:
            step = float(factor) ** (1 / len(excess.sides))
            nodes = {node for side in excess.sides for node in side}
            by_site.update(
                (id(measurement.site), step)
                for node in nodes
                for measurement in places.uses[node].measurements
                if measurement.site.product == product
            )
    asked = {}
    for source, sites in places.shared.items():
        logs = [math.log(by_site[id(s)]) / s.use.power for s in sites if id(s) in by_site]
        asked[source] = sum(logs) / len(logs) if logs else 0.0
    return asked


def _limits(places: Places) -> dict[Source, float]:
    """The largest factor that each weight with several uses may be given."""
    limits = dict.fromkeys(places.shared, math.inf)
    for use in places.uses.values():
        for source in use.sources:
            if source in limits and use.limit is not None:
                limits[source] = min(limits[source], use.limit)
    return limits
