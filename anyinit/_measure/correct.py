"""From what a pass has measured to the plan: scales, moments and findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from anyinit._classify.traits import Source
from anyinit._findings import Finding, Kind
from anyinit._measure.measuring_pass import Seen
from anyinit._measure.places import Excess, Places
from anyinit._plan.analysis import Analysis, first_readout
from anyinit._plan.plan import MeasuredMoment, Plan, WeightPlan
from anyinit._plan.rows import entering_sizes
from anyinit._plan.watched import watched


def corrected_plan(
    analysis: Analysis,
    places: Places,
    seen: Seen,
    shared: Mapping[Source, float],
    unsettled: float | None,
) -> Plan:
    """An analytic plan with what was measured in the place of what was predicted.

    Arguments:
        analysis: the analysis of the model.
        places: what was measured.
        seen: what the last pass has measured.
        shared: by how much each weight with several uses is multiplied.
        unsettled: by how much these still change, where they did not settle.
    """
    plan = analysis.plan
    factors = {**_single_factors(places, seen), **shared}
    by_leaf: dict[int, dict[int, float]] = {}
    for (leaf, item), factor in factors.items():
        by_leaf.setdefault(leaf, {})[0 if item is None else item] = factor
    names = {leaf: parameter.name for leaf, parameter in analysis.model.parameters.items()}
    factor_of = {names[leaf]: found for leaf, found in by_leaf.items()}
    entering, shares = _entering(analysis, places, seen), _shares(places, seen)
    rows = []
    for leaf, name in names.items():
        row = plan.weight_by_name.get(name)
        if row is not None:
            share = shares.get(leaf, 1.0)
            found = entering.get(leaf, (row.moment_in, 1.0))
            rows.append(_row(row, factor_of.get(name, {}), found, share))
    order = {row.path: place for place, row in enumerate(plan.weights)}
    rows.sort(key=lambda row: order[row.path])
    findings = [*plan.findings, *_nothing_measured(analysis, places, seen)]
    if unsettled is not None:
        detail = f"relative change {unsettled:.2g} in the last pass"
        findings.append(Finding(Kind.UNSETTLED, "model", "", detail))
    logits_moment = plan.logits_moment
    readout = first_readout(analysis.model, analysis.sites)
    if readout is not None and readout.output in seen.totals:
        # What all columns have in common does not enter the loss.
        mean = float(seen.means.get(readout.use.node, 0.0))
        logits_moment = max(float(seen.totals[readout.output]) - mean**2, 0.0)
    return dataclasses.replace(
        plan,
        weights=tuple(rows),
        findings=tuple(dict.fromkeys(findings)),
        logits_moment=logits_moment,
        measured=_moments(analysis, places, seen),
    )


def _moments(analysis: Analysis, places: Places, seen: Seen) -> tuple[MeasuredMoment, ...]:
    """The second moment at each place of the model, every scale corrected."""
    reduced: dict[int, float] = {}
    for excess, factor in _corrected(places, seen):
        sides = excess.sides
        for node in (node for side in sides for node in side):
            for measurement in places.uses[node].measurements:
                reduced[measurement.site.value] = factor ** (2 / len(sides))
    return tuple(
        MeasuredMoment(entry.name, float(seen.totals[value]) * reduced.get(value, 1.0))
        for value, entries in watched(analysis).items()
        for entry in entries
        if np.isfinite(seen.totals[value])
    )


def _single_factors(places: Places, seen: Seen) -> dict[Source, float]:
    """By how much each weight that is used once is multiplied."""
    factors: dict[Source, float] = {}
    for node, factor in seen.factors.items():
        use = places.uses[node]
        for source in use.sources:
            factors[source] = float(factor) ** (1 / use.use.power)
    for excess, factor in _corrected(places, seen):
        for side in excess.sides:
            for node in side:
                use = places.uses[node]
                for source in use.sources:
                    factors[source] *= factor ** (1 / (len(excess.sides) * use.use.power))
    return factors


def _entering(analysis: Analysis, places: Places, seen: Seen) -> dict[int, tuple[float, float]]:
    """For each parameter, the second moment to report of what enters it, and how c changes."""
    found = {}
    asked = analysis.solution.record.asked
    for source, sites in analysis.solution.deciding.items():
        first = sites[-1]
        if first.use.node in seen.entering and source[1] in (None, 0):
            before, size = entering_sizes(first, float(seen.entering[first.use.node]))
            _, planned = entering_sizes(first, asked.get(first.use.value, (1.0, 1.0))[0])
            found[source[0]] = before, size / planned
    return found


def _shares(places: Places, seen: Seen) -> dict[int, float]:
    """For each parameter behind a product of two signals, what its side may have."""
    return {
        source[0]: factor ** (2 / len(excess.sides)) / measurement.site.terms
        for excess, factor in _corrected(places, seen)
        for side in excess.sides
        for node in side
        for source in places.uses[node].sources
        for measurement in places.uses[node].measurements
    }


def _row(
    row: WeightPlan,
    factors: Mapping[int, float],
    entering: tuple[float, float],
    share: float,
) -> WeightPlan:
    """A row of the plan with what was measured in the place of what was predicted."""
    if isinstance(row.sigma, tuple):
        sigma: Any = tuple(s * factors.get(item, 1.0) for item, s in enumerate(row.sigma))
    else:
        sigma = row.sigma * factors.get(0, 1.0)
    square = factors.get(0, 1.0) ** 2
    moment_in, size = entering
    own = row.own_token_logit
    return dataclasses.replace(
        row,
        sigma=sigma,
        at_most=False,
        target=row.target if share == 1.0 else share,
        moment_in=moment_in,
        c=row.c * size,
        m=row.m / size,
        arrival=None if row.arrival is None else row.arrival * square,
        own_token_logit=None if own is None else own * square,
    )


def _nothing_measured(analysis: Analysis, places: Places, seen: Seen) -> list[Finding]:
    """Weights that deliver nothing on this batch."""
    return [
        Finding(
            Kind.NOTHING_MEASURED,
            analysis.model.parameters[places.uses[node].sources[0][0]].name,
            analysis.model.graph.nodes[node].where,
        )
        for node, found in seen.delivered.items()
        if all(value <= 0 for value in found)
    ]


def _corrected(places: Places, seen: Seen) -> list[tuple[Excess, float]]:
    """The products that were corrected where they are made, and by how much."""
    return [
        (places.excesses[product], float(factor))
        for product, factor in seen.excess.items()
        if not places.excesses[product].shared
    ]
