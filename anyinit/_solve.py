"""From sites to scales: every weight asks for what its sites want, until the numbers settle."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np

from anyinit._graph import Graph
from anyinit._propagate import Record, propagate
from anyinit._repeated import recurrent_limits, repeated_uses
from anyinit._shares import update_shares
from anyinit._sites import Site, Sites
from anyinit._targets import deciding_sites, is_tied, wanted
from anyinit._traits import Source, Traits
from anyinit._twins import find_pools
from anyinit._uses import Use

_PASSES = 32
_SETTLED = 1e-3
_UNDAMPED = 4


@dataclasses.dataclass(frozen=True)
class Solution:
    """The settled scales.

    Arguments:
        sigma: standard deviation of each planned source.
        record: what the last pass has seen.
        shares: for each product of two signals, the second moment that each side may have.
        deciding: the sites that decide a source's scale.
        silent: sources whose sites ask for nothing.
        limited: recurrent weights that may not be as large as their site asks.
        unsettled: largest relative change in the last pass, if it is not settled.
    """

    sigma: Mapping[Source, float]
    record: Record
    shares: Mapping[int, float]
    deciding: Mapping[Source, tuple[Site, ...]]
    silent: frozenset[Source]
    limited: tuple[Source, ...]
    unsettled: float | None


@dataclasses.dataclass(frozen=True)
class _Problem:
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
class _Iterate:
    """The numbers that passes change: scales of the sources, shares of the products."""

    sigma: dict[Source, float]
    shares: dict[int, float]


def solve(
    graph: Graph,
    traits: Traits,
    sites: Sites,
    signals: Mapping[int, np.ndarray],
    drawn: Mapping[Source, np.ndarray],
) -> Solution:
    """Iterate passes and scales until they settle.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        sites: the sites of all weights.
        signals: samples of the float inputs.
        drawn: samples of the sources that keep their values.
    """
    repeated = repeated_uses(graph, traits, sites.uses.scaled)
    problem = _problem(graph, sites, drawn, repeated)
    iterate = _Iterate({}, {})
    uses = {use.node: use for use in sites.uses.scaled}
    recorded = {s.value for s in sites.sites} | {
        s.product for s in sites.sites if s.product is not None
    }
    for loop in graph.capped_loops:
        recorded |= {*loop.before, *loop.after}
    pools = find_pools(graph, traits)
    kept = frozenset(s.value for s in sites.sites if s.output is not None)

    def ask(use: Use, entering: float, weight: float) -> float:
        return _set_where_used(problem, iterate, use, entering, weight)

    change = math.inf
    record = Record({}, {}, {}, set())
    for count in range(_PASSES):
        previous = dict(iterate.sigma)
        record = propagate(
            graph, traits, signals, iterate.sigma, drawn, uses, ask, recorded, kept, repeated, pools
        )
        damping = 1.0 if count < _UNDAMPED else 0.5
        change = max(
            _rescale_shared(problem, iterate, record, damping),
            _change(problem.single, previous, iterate.sigma),
            update_shares(sites, record, iterate.shares),
        )
        if change < _SETTLED:
            break
    return Solution(
        iterate.sigma,
        record,
        iterate.shares,
        problem.deciding,
        _silent(problem, iterate, record),
        tuple(s for s, limit in problem.limits.items() if iterate.sigma.get(s) == limit),
        change if change >= _SETTLED else None,
    )


def _problem(
    graph: Graph,
    sites: Sites,
    drawn: Mapping[Source, np.ndarray],
    repeated: Mapping[int, int],
) -> _Problem:
    deciding = {
        source: found
        for source, found in deciding_sites(graph, sites).items()
        if source not in drawn
    }
    of_use: dict[int, list[Site]] = defaultdict(list)
    for site in sites.sites:
        of_use[site.use.value].append(site)
    places = Counter(source for use in sites.uses.scaled for source in use.sources)
    return _Problem(
        sites,
        deciding,
        of_use,
        frozenset(source for source in deciding if places[source] == 1),
        frozenset(source for source in deciding if is_tied(sites, source)),
        recurrent_limits(graph, repeated, sites.uses.scaled),
    )


def _set_where_used(
    problem: _Problem, iterate: _Iterate, use: Use, entering: float, weight: float
) -> float:
    """Give the sources of one use their scale; the factor by which its result changes."""
    sources = [source for source in use.sources if source in problem.deciding]
    if not sources:
        return 1.0
    ratio = _ratio(problem, iterate, problem.of_use[use.value], entering, weight)
    shared = not all(source in problem.single for source in sources)
    settled = any(source in iterate.sigma or source in problem.tied for source in sources)
    if ratio is None or (shared and settled):
        for source in sources:
            iterate.sigma.setdefault(source, 1.0)
        return 1.0
    for source in sources:
        iterate.sigma[source] = iterate.sigma.get(source, 1.0) * ratio ** (1 / use.power)
    return ratio


def _rescale_shared(problem: _Problem, iterate: _Iterate, record: Record, damping: float) -> float:
    """Give weights with several uses what these ask for after a pass; the largest change."""
    change = 0.0
    for source, found in problem.deciding.items():
        if source in problem.single or source not in iterate.sigma:
            continue
        logs = []
        for site in found:
            entering, weight = record.asked.get(site.use.value, (0.0, 0.0))
            ratio = _ratio(problem, iterate, [site], entering, weight)
            if ratio is not None:
                logs.append(math.log(ratio) / site.use.power)
        if logs:
            step = damping * sum(logs) / len(logs)
            limit = problem.limits.get(source, math.inf)
            scale = min(iterate.sigma[source] * math.exp(step), limit)
            change = max(change, abs(math.log(scale / iterate.sigma[source])))
            iterate.sigma[source] = scale
    return change


def _change(
    sources: Set[Source], before: Mapping[Source, float], after: Mapping[Source, float]
) -> float:
    """The largest relative change of the sources that had a scale before."""
    logs = [abs(math.log(after[s] / before[s])) for s in sources if s in before]
    return max(logs, default=0.0)


def _silent(problem: _Problem, iterate: _Iterate, record: Record) -> frozenset[Source]:
    """Sources of which nothing is asked: what enters or what acts on them is zero."""
    return frozenset(
        source
        for source, found in problem.deciding.items()
        if all(wanted(site, iterate.shares, None) is None for site in found)
        or all(record.asked.get(s.use.value, (0.0, 0.0))[0] <= 0.0 for s in found)
    )


def _ratio(
    problem: _Problem,
    iterate: _Iterate,
    sites: Sequence[Site],
    entering: float,
    weight: float,
) -> float | None:
    """Factor on the weight's scale that one use asks for: the geometric mean over its sites."""
    logs = []
    for site in sites:
        moment = wanted(site, iterate.shares, _arrival(problem, iterate, site))
        present = site.use.fan * entering * weight
        if moment is not None and moment > 0 and present > 0:
            logs.append(0.5 * math.log(moment / present))
    return math.exp(sum(logs) / len(logs)) if logs else None


def _arrival(problem: _Problem, iterate: _Iterate, site: Site) -> float | None:
    """What a tied table that is added to this lookup delivers; the lookup matches it."""
    for peer in site.peers:
        if any(source in problem.tied for source in peer.sources):
            scale = math.prod(iterate.sigma.get(source, 1.0) ** 2 for source in peer.sources)
            other = problem.of_use[peer.value][0]
            return scale * other.before**2 * other.path_gain
    return None
