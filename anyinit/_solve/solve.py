"""From sites to scales: every weight asks for what its sites want, until the numbers settle."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set

import numpy as np

from anyinit._classify.traits import Source, Traits
from anyinit._graph.graph import Graph
from anyinit._propagate.positions import Pool, find_pools
from anyinit._propagate.propagate import Record, propagate
from anyinit._sites.repeated import repeated_uses
from anyinit._sites.sites import Site, Sites
from anyinit._sites.uses import Use
from anyinit._solve.demands import (
    Iterate,
    Problem,
    asked_factor,
    asked_of_sites,
    disagreements,
    problem_of,
)
from anyinit._solve.secant import Move, next_move
from anyinit._solve.shares import update_shares
from anyinit._solve.targets import wanted

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
        disagreeing: the smallest and largest scale that the uses of a source ask for, where
            they differ.
        repeated: identities of the weights that are used several times.
        pools: sums and extremes over positions.
        unsettled: largest relative change in the last pass, if it is not settled.
    """

    sigma: Mapping[Source, float]
    record: Record
    shares: Mapping[int, float]
    deciding: Mapping[Source, tuple[Site, ...]]
    silent: frozenset[Source]
    limited: tuple[Source, ...]
    disagreeing: Mapping[Source, tuple[float, float]]
    repeated: Mapping[int, int]
    pools: Mapping[int, Pool]
    unsettled: float | None


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
    problem = problem_of(graph, traits, sites, drawn, repeated)
    iterate = Iterate({}, {}, {})
    uses = {use.node: use for use in sites.uses.scaled}
    recorded = {s.value for s in sites.sites} | {
        s.product for s in sites.sites if s.product is not None
    }
    recorded |= sites.structure.residuals.keys()
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
        disagreements(problem, iterate, record),
        repeated,
        pools,
        change if change >= _SETTLED else None,
    )


def _set_where_used(
    problem: Problem, iterate: Iterate, use: Use, entering: float, weight: float
) -> float:
    """Give the sources of one use their scale; the factor by which its result changes."""
    sources = [source for source in use.sources if source in problem.deciding]
    if not sources:
        return 1.0
    sites = problem.of_use[use.value]
    deciding = {id(site) for source in sources for site in problem.deciding[source]}
    counted = [site for site in sites if id(site) in deciding] or sites
    ratio = asked_factor(problem, iterate, counted, entering, weight)
    shared = not all(source in problem.single for source in sources)
    settled = any(source in iterate.sigma or source in problem.tied for source in sources)
    if ratio is None or (shared and settled):
        for source in sources:
            iterate.sigma.setdefault(source, 1.0)
        return 1.0
    for source in sources:
        iterate.sigma[source] = iterate.sigma.get(source, 1.0) * ratio ** (1 / use.power)
    return ratio


def _rescale_shared(problem: Problem, iterate: Iterate, record: Record, damping: float) -> float:
    """Give weights with several uses what these ask for after a pass; the largest change."""
    change = 0.0
    for source, found in problem.deciding.items():
        if source in problem.single or source not in iterate.sigma:
            continue
        logs = asked_of_sites(problem, iterate, record, found)
        if logs:
            move = next_move(sum(logs) / len(logs), iterate.moves.get(source), damping)
            limit = problem.limits.get(source, math.inf)
            scale = min(iterate.sigma[source] * math.exp(move.step), limit)
            done = math.log(scale / iterate.sigma[source])
            change = max(change, abs(done))
            iterate.sigma[source] = scale
            iterate.moves[source] = Move(done, move.asked)
    return change


def _change(
    sources: Set[Source], before: Mapping[Source, float], after: Mapping[Source, float]
) -> float:
    """The largest relative change of the sources that had a scale before."""
    logs = [abs(math.log(after[s] / before[s])) for s in sources if s in before]
    return max(logs, default=0.0)


def _silent(problem: Problem, iterate: Iterate, record: Record) -> frozenset[Source]:
    """Sources of which nothing is asked: what enters or what acts on them is zero."""
    return frozenset(
        source
        for source, found in problem.deciding.items()
        if all(wanted(site, iterate.shares, None) is None for site in found)
        or all(record.asked.get(s.use.value, (0.0, 0.0))[0] <= 0.0 for s in found)
    )
