"""From sites to scales: every weight asks for what its sites want, until the numbers settle."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anyinit._graph import Graph
from anyinit._propagate import Record, propagate
from anyinit._sites import Site, Sites
from anyinit._traits import Source, Traits
from anyinit._uses import Meeting, Use
from anyinit._walk import Acts

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
        unsettled: largest relative change in the last pass, if it is not settled.
    """

    sigma: Mapping[Source, float]
    record: Record
    shares: Mapping[int, float]
    deciding: Mapping[Source, tuple[Site, ...]]
    silent: frozenset[Source]
    unsettled: float | None


def deciding_sites(graph: Graph, sites: Sites) -> dict[Source, tuple[Site, ...]]:
    """The sites that decide each source: for a tied table those of the output."""
    by_source: dict[Source, list[Site]] = defaultdict(list)
    for site in sites.sites:
        for source in site.use.sources:
            if source not in sites.fixed:
                by_source[source].append(site)
    chosen: dict[Source, tuple[Site, ...]] = {}
    for source, found in by_source.items():
        settled = [s for s in found if graph.nodes[s.use.node].last_step] or found
        readouts = [
            s
            for s in settled
            if s.use.meeting is Meeting.CONTRACTION and s.acts is not Acts.NORMALIZATION
        ]
        lookups = [s for s in settled if s.use.meeting is not Meeting.CONTRACTION]
        chosen[source] = tuple(readouts or lookups or settled)
    return chosen


def solve(
    graph: Graph,
    traits: Traits,
    sites: Sites,
    signals: Mapping[int, np.ndarray],
    drawn: Mapping[Source, np.ndarray],
) -> Solution:
    """Iterate passes and scales until they settle."""
    deciding = deciding_sites(graph, sites)
    deciding = {source: found for source, found in deciding.items() if source not in drawn}
    uses = {use.node: use for use in sites.uses.scaled}
    of_use: dict[int, list[Site]] = defaultdict(list)
    for site in sites.sites:
        of_use[site.use.value].append(site)
    places: dict[Source, int] = defaultdict(int)
    for use in sites.uses.scaled:
        for source in use.sources:
            places[source] += 1
    single = {source for source in deciding if places[source] == 1}
    tied = {source for source in deciding if _is_tied(sites, source)}
    sigma: dict[Source, float] = {}
    shares: dict[int, float] = {}
    wanted = {s.value for s in sites.sites} | {
        s.product for s in sites.sites if s.product is not None
    }
    by_value = {site.use.value: site for site in sites.sites}

    def arrival(site: Site) -> float | None:
        """What a tied table that is added to this lookup delivers; the lookup matches it."""
        for peer in site.peers:
            other = by_value.get(peer.value)
            if other is not None and any(source in tied for source in peer.sources):
                scale = math.prod(sigma.get(source, 1.0) ** 2 for source in peer.sources)
                return scale * other.before**2 * other.path_gain
        return None

    def ask(use: Use, entering: float, weight: float) -> float:
        sources = [source for source in use.sources if source in deciding]
        if not sources:
            return 1.0
        ratio = _ratio(of_use[use.value], arrival, shares, entering, weight)
        shared = not all(source in single for source in sources)
        settled = any(source in sigma or source in tied for source in sources)
        if ratio is None or (shared and settled):
            for source in sources:
                sigma.setdefault(source, 1.0)
            return 1.0
        for source in sources:
            sigma[source] = sigma.get(source, 1.0) * float(ratio ** (1 / len(sources)))
        return ratio

    unsettled: float | None = None
    record = Record({}, {}, {}, set())
    for count in range(_PASSES):
        previous = dict(sigma)
        record = propagate(
            graph, traits, signals, sigma, drawn, uses, ask, wanted, frozenset(graph.outputs)
        )
        asked = _shared_asks(deciding, single, sigma, record, arrival, shares)
        damping = 1.0 if count < _UNDAMPED else 0.5
        change = 0.0
        for source, ratio in asked.items():
            sigma[source] *= ratio**damping
            change = max(change, abs(math.log(ratio)) * damping)
        for source in single & previous.keys():
            change = max(change, abs(math.log(sigma[source] / previous[source])))
        change = max(change, _update_shares(sites, record, shares))
        unsettled = change
        if change < _SETTLED:
            unsettled = None
            break
    silent = frozenset(
        source
        for source, found in deciding.items()
        if all(_wanted(site, shares, None) is None for site in found)
        or all(record.asked.get(s.use.value, (0.0, 0.0))[0] <= 0.0 for s in found)
    )
    return Solution(sigma, record, shares, deciding, silent, unsettled)


def _is_tied(sites: Sites, source: Source) -> bool:
    meetings = {site.use.meeting for site in sites.sites if source in site.use.sources}
    return Meeting.CONTRACTION in meetings and len(meetings) > 1


def target(site: Site, shares: Mapping[int, float]) -> float:
    """The target to report: the second moment wanted where the site's row of the rules says so."""
    share = 1.0 / site.terms
    if site.acts is Acts.RESIDUAL:
        attenuation = site.path_gain * site.before**2
        whole = 1.0 if attenuation <= 0 else min(1.0, 1.0 / (site.additions * attenuation))
        return whole * share / site.coherent
    if site.acts is Acts.PRODUCT:
        return share * shares.get(site.product or 0, 1.0)
    return share


def _wanted(site: Site, shares: Mapping[int, float], arrival: float | None) -> float | None:
    goal = target(site, shares)
    inside = site.before**2
    if site.acts is Acts.RESIDUAL:
        return goal * inside if inside > 0 else None
    if site.acts is Acts.PRODUCT:
        rest = site.path_gain / site.path_factor**2 if site.path_factor else 0.0
        return goal * inside / rest if rest > 0 and inside > 0 else None
    if site.path_gain <= 0:
        return None
    return (goal if arrival is None else arrival) / site.path_gain


def _ratio(
    sites: Sequence[Site],
    arrival: Callable[[Site], float | None],
    shares: Mapping[int, float],
    entering: float,
    weight: float,
) -> float | None:
    """Factor on the weight's scale that one use asks for: the geometric mean over its sites."""
    logs = []
    for site in sites:
        wanted = _wanted(site, shares, arrival(site))
        present = site.use.fan * entering * weight
        if wanted is not None and wanted > 0 and present > 0:
            logs.append(0.5 * math.log(wanted / present))
    return math.exp(sum(logs) / len(logs)) if logs else None


def _shared_asks(
    deciding: Mapping[Source, tuple[Site, ...]],
    single: set[Source],
    sigma: Mapping[Source, float],
    record: Record,
    arrival: Callable[[Site], float | None],
    shares: Mapping[int, float],
) -> dict[Source, float]:
    """What weights with several uses ask for after a pass."""
    ratios = {}
    for source, found in deciding.items():
        if source in single or source not in sigma:
            continue
        logs = []
        for site in found:
            if site.use.value not in record.asked:
                continue
            entering, weight = record.asked[site.use.value]
            ratio = _ratio([site], arrival, shares, entering, weight)
            if ratio is not None:
                logs.append(math.log(ratio) / len(site.use.sources))
        if logs:
            ratios[source] = math.exp(sum(logs) / len(logs))
    return ratios


def _update_shares(sites: Sites, record: Record, shares: dict[int, float]) -> float:
    """Second moment that each side of a product may have so that the product has at most 1."""
    sides: dict[int, list[Site]] = defaultdict(list)
    for site in sites.sites:
        if site.product is not None:
            sides[site.product].append(site)
    change = 0.0
    for product, found in sides.items():
        if product not in record.moments:
            continue
        count = min(len({site.value for site in found}), 2)
        old = shares.get(product, 1.0)
        whole = record.moments[product] * found[0].product_gain / old**count
        shares[product] = new = min(1.0, whole ** (-1.0 / count)) if whole > 0 else 1.0
        change = max(change, abs(math.log(new / old)))
    return change


def role_names(sites: Sites, source: Source, outputs_of: set[Acts]) -> tuple[str, ...]:
    """The roles of a source: what the model does with it."""
    roles = []
    for site in sites.sites:
        if source not in site.use.sources:
            continue
        if site.use.meeting is not Meeting.CONTRACTION:
            roles.append("lookup")
        elif site.acts in outputs_of:
            roles.append("readout")
        else:
            roles.append("kernel")
    order = {"lookup": 0, "kernel": 1, "readout": 2}
    return tuple(sorted(dict.fromkeys(roles), key=order.__getitem__))
