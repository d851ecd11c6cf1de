"""What the uses of a weight ask of its scale, given what has been measured of the signal."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from anyinit._classify.traits import Source, Traits
from anyinit._graph.graph import Graph
from anyinit._propagate.propagate import Record
from anyinit._sites.repeated import recurrent_limits
from anyinit._sites.sites import Site, Sites
from anyinit._solve.secant import Move
from anyinit._solve.targets import arrival_of, deciding_sites, is_tied, wanted

# Uses whose scales differ by less ask for the same.
_AGREE = 1.25


@dataclasses.dataclass(frozen=True)
class Problem:
    """What has to be solved.

    Arguments:
        sites: all sites.
        deciding: the sites that decide each planned source.
        of_use: the sites of each use, by the use's value.
        single: planned sources that are used once: their scale is set where they are used.
        tied: planned sources that are looked up and contracted.
        limits: the largest scale of recurrent weights.
    """

    sites: Sites
    deciding: Mapping[Source, tuple[Site, ...]]
    of_use: Mapping[int, Sequence[Site]]
    single: frozenset[Source]
    tied: frozenset[Source]
    limits: Mapping[Source, float]


@dataclasses.dataclass(frozen=True)
class Iterate:
    """The numbers that passes change.

    Arguments:
        sigma: scales of the sources.
        shares: shares of the products of two signals.
        moves: the last moves of the scales of sources that have several uses.
    """

    sigma: dict[Source, float]
    shares: dict[int, float]
    moves: dict[Source, Move]


def problem_of(
    graph: Graph,
    traits: Traits,
    sites: Sites,
    drawn: Mapping[Source, np.ndarray],
    repeated: Mapping[int, int],
) -> Problem:
    """Collect what has to be solved.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        sites: the sites of all weights.
        drawn: samples of the sources that keep their values.
        repeated: which weight each use of a weight used several times multiplies with.
    """
    deciding = {
        source: found
        for source, found in deciding_sites(graph, sites).items()
        if source not in drawn
    }
    of_use: dict[int, list[Site]] = defaultdict(list)
    for site in sites.sites:
        of_use[site.use.value].append(site)
    places = Counter(source for use in sites.uses.scaled for source in use.sources)
    return Problem(
        sites,
        deciding,
        of_use,
        frozenset(source for source in deciding if places[source] == 1),
        frozenset(source for source in deciding if is_tied(sites, source)),
        recurrent_limits(graph, traits, repeated, sites.uses.scaled),
    )


def asked_factor(
    problem: Problem,
    iterate: Iterate,
    sites: Sequence[Site],
    entering: float,
    weight: float,
) -> float | None:
    """Factor on the weight's scale that one use asks for: the geometric mean over its sites."""
    logs = []
    for site in sites:
        matched = arrival_of(problem.of_use, problem.tied, iterate.sigma, site)
        moment = wanted(site, iterate.shares, None if matched is None else matched[0])
        present = site.use.fan * entering * weight
        if moment is not None and moment > 0 and present > 0:
            logs.append(0.5 * math.log(moment / present))
    return math.exp(sum(logs) / len(logs)) if logs else None


def asked_of_sites(
    problem: Problem, iterate: Iterate, record: Record, sites: Sequence[Site]
) -> list[float]:
    """Logarithm of the factor on a weight's scale that each of its sites asks for, after a pass.

    Arguments:
        problem: what has to be solved.
        iterate: the numbers so far.
        record: what the pass has seen.
        sites: the sites of one weight; those that ask for nothing are left out.
    """
    logs = []
    for site in sites:
        entering, weight = record.asked.get(site.use.value, (0.0, 0.0))
        factor = asked_factor(problem, iterate, [site], entering, weight)
        if factor is not None:
            logs.append(math.log(factor) / site.use.power)
    return logs


def disagreements(
    problem: Problem, iterate: Iterate, record: Record
) -> dict[Source, tuple[float, float]]:
    """The smallest and the largest scale that the uses of one weight ask for, where they differ.

    Arguments:
        problem: what had to be solved.
        iterate: the settled numbers.
        record: what the last pass has seen.
    """
    found = {}
    for source, sites in problem.deciding.items():
        if len(sites) < 2 or source in problem.limits or source not in iterate.sigma:
            continue
        logs = asked_of_sites(problem, iterate, record, sites)
        scales = [iterate.sigma[source] * math.exp(log) for log in logs]
        if scales and max(scales) > _AGREE * min(scales):
            found[source] = (min(scales), max(scales))
    return found
