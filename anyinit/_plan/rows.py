"""The rows of a plan: what is planned for each weight, and why another is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anyinit._classify.traits import Role, Source
from anyinit._findings import Reason
from anyinit._graph.stacks import layer_axes
from anyinit._plan.plan import WeightPlan
from anyinit._plan.rates import is_same_rate
from anyinit._propagate.signal import mean_and_variance
from anyinit._sites.events import Acts
from anyinit._sites.sites import Site, Sites
from anyinit._solve.solve import Solution
from anyinit._solve.targets import is_table, is_tied, reported_target, role_names
from anyinit._trace.trace import Model, Parameter


def weight_rows(model: Model, sites: Sites, solution: Solution) -> list[WeightPlan]:
    """One row a planned weight, in the order of use."""
    by_leaf: dict[int, list[Source]] = {}
    for source in solution.deciding:
        if source not in solution.silent and source in solution.sigma:
            by_leaf.setdefault(source[0], []).append(source)
    weights = []
    for leaf, sources in by_leaf.items():
        parameter = model.parameters[leaf]
        sources.sort(key=lambda source: -1 if source[1] is None else source[1])
        found = [site for source in sources for site in solution.deciding[source]]
        # Of a weight that is used step after step the settled step counts.
        first = solution.deciding[sources[0]][-1]
        entering = solution.record.asked.get(first.use.value, (1.0, 1.0))[0]
        factors = [abs(site.factor) for site in found if site.factor]
        factor = math.exp(sum(map(math.log, factors)) / len(factors))
        before_constants, size = entering_sizes(first, entering)
        factor *= size
        factor = 1.0 if is_same_rate(factor, 1.0) else factor
        scales = tuple(solution.sigma[source] for source in sources)
        stacked = sources[0][1] is not None
        lookups = [s for s in sites.sites if s.use.sources == (sources[0],) and is_table(s)]
        arrival = None
        if lookups:
            weight = solution.sigma[sources[0]] ** 2
            arrival = weight * lookups[0].path_gain * lookups[0].before ** 2
        wanted = reported_target(first, solution.shares)
        if is_table(first) and arrival is not None and _is_added_to_a_tied_table(sites, first):
            wanted = arrival  # it arrives as large as the tied table that it is added to
        signal = first.use.signal
        before = None if parameter.samples is None else math.sqrt(_variance(parameter.samples))
        weights.append(
            WeightPlan(
                path=parameter.name,
                shape=parameter.shape,
                dtype=str(parameter.dtype),
                roles=role_names(sites, sources[0], {Acts.OUTPUT}),
                site="arrival of a lookup" if is_table(first) else first.acts.value,
                where=first.where,
                fan=round(first.use.fan),
                moment_in=before_constants,
                c=factor,
                target=wanted,
                at_most=signal is not None and model.traits[signal].at_most,
                std_before=before,
                sigma=scales if stacked else scales[0],
                layer_axes=layer_axes(model.graph, leaf) if stacked else (),
                m=1.0 / factor,
                aliases=parameter.aliases,
                arrival=arrival,
            )
        )
    return weights


def _is_added_to_a_tied_table(sites: Sites, site: Site) -> bool:
    return any(is_tied(sites, source) for peer in site.peers for source in peer.sources)


def entering_sizes(site: Site, entering: float) -> tuple[float, float]:
    """The second moment to report of what enters a weight, and what its input's size adds to c.

    Constants that count are reported as c and not in the moment. Where they only bring the model's
    own input to another size (pixels divided by 255), that size counts with them: a weight behind
    pixels divided by 255 is no larger than one behind numbers of size 1.

    Arguments:
        site: the site that decides the weight.
        entering: second moment of what is multiplied with the weight.
    """
    on_input = site.on_input if site.counted else 1.0
    before = entering / (on_input**2 if on_input else 1.0)
    if site.counted and site.scales_input and before > 0:
        return 1.0, math.sqrt(before)
    return before, 1.0


def _variance(samples: np.ndarray) -> float:
    return mean_and_variance(samples)[1]


def reason_to_leave(
    model: Model,
    sites: Sites,
    solution: Solution,
    value: int,
    parameter: Parameter,
    chosen: Callable[[str], bool],
) -> Reason:
    """Why a parameter keeps its values."""
    if not parameter.drawn:
        return Reason.CONSTANT
    if model.traits[value].role is not Role.WEIGHT:
        return Reason.NOT_FLOAT
    if not chosen(parameter.name):
        return Reason.SKIPPED
    for source, reason in sites.fixed.items():
        if source[0] == value:
            return reason
    if any(source[0] == value for source in solution.silent):
        return Reason.SILENT
    if not model.graph.consumers[value]:
        return Reason.UNUSED
    return Reason.UNPLANNED
