"""What a site asks for: the second moment wanted there, and which sites decide a weight."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from anyinit._classify.traits import Source
from anyinit._graph.graph import Graph
from anyinit._sites.events import Acts
from anyinit._sites.sites import Site, Sites
from anyinit._sites.uses import Meeting

# Sites of one use that may be the steps of a loop.
_SEVERAL = 3


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
        settled = [s for s in settled if s.terms == _usual_terms(s, settled)]
        readouts = [
            s
            for s in settled
            if s.use.meeting is Meeting.CONTRACTION and s.acts is not Acts.NORMALIZATION
        ]
        lookups = [s for s in settled if s.use.meeting is not Meeting.CONTRACTION]
        chosen[source] = tuple(readouts or lookups or settled)
    return chosen


def _usual_terms(site: Site, found: Sequence[Site]) -> int:
    """With how many terms most sites of a use share their target.

    Of what is projected once for all steps of a loop that is written out, the first step has no
    state to share with: it is as little settled as the first step of any loop.
    """
    alike = [other.terms for other in found if other.use == site.use and other.acts is site.acts]
    return Counter(alike).most_common(1)[0][0] if len(alike) >= _SEVERAL else site.terms


def is_table(site: Site) -> bool:
    """Whether a weight is looked up or added there, not contracted."""
    return site.use.meeting is not Meeting.CONTRACTION


def is_tied(sites: Sites, source: Source) -> bool:
    """Whether a source is both looked up (or added) and contracted."""
    meetings = {site.use.meeting for site in sites.sites if source in site.use.sources}
    return Meeting.CONTRACTION in meetings and len(meetings) > 1


def target(site: Site, shares: Mapping[int, float]) -> float:
    """The second moment wanted where the site's row of the rules says so."""
    share = 1.0 / site.terms
    if site.acts is Acts.RESIDUAL:
        attenuation = site.path_gain * site.before**2
        whole = 1.0 if attenuation <= 0 else min(1.0, 1.0 / (site.additions * attenuation))
        return whole * share / site.coherent
    if site.acts is Acts.PRODUCT:
        return share * shares.get(site.product or 0, 1.0)
    return share


def reported_target(site: Site, shares: Mapping[int, float]) -> float:
    """The target to report: with what a gate larger than one leaves of a residual branch's."""
    gate = shares.get(site.use.value, 1.0) if site.acts is Acts.RESIDUAL else 1.0
    return target(site, shares) * gate


def wanted(site: Site, shares: Mapping[int, float], arrival: float | None) -> float | None:
    """The second moment wanted of a use's product, or ``None`` where nothing can be asked.

    Arguments:
        site: the site.
        shares: for each product of two signals, the second moment that each side may have; for
            each gated use, what a gate larger than one leaves of its target.
        arrival: second moment at which a lookup has to arrive, where a tied table fixes it.
    """
    goal = target(site, shares)
    inside = site.before**2
    if site.acts is Acts.RESIDUAL:
        return goal * inside * shares.get(site.use.value, 1.0) if inside > 0 else None
    if not site.counted:
        rest = site.path_gain / site.path_factor**2 if site.path_factor else 0.0
        return goal / rest if rest > 0 else None
    if site.path_gain <= 0 or site.factor == 0:
        return None
    return (goal if arrival is None else arrival) / site.path_gain


def arrival_of(
    of_use: Mapping[int, Sequence[Site]],
    tied: Set[Source],
    sigma: Mapping[Source, float],
    site: Site,
) -> tuple[float, tuple[Source, ...]] | None:
    """What a tied table that is added to this lookup delivers; the lookup matches it.

    Arguments:
        of_use: the sites of each use, by the use's value.
        tied: the sources that are looked up and contracted.
        sigma: standard deviation of each source.
        site: the site of the lookup.

    Returns:
        the second moment and the sources of the table, or ``None`` where no table is added.
    """
    for peer in site.peers:
        if any(source in tied for source in peer.sources):
            scale = math.prod(sigma.get(source, 1.0) ** 2 for source in peer.sources)
            other = of_use[peer.value][0]
            return scale * other.before**2 * other.path_gain, peer.sources
    return None


def role_names(sites: Sites, source: Source, outputs_of: set[Acts]) -> tuple[str, ...]:
    """The roles of a source: what the model does with it."""
    roles = []
    for site in sites.sites:
        if source not in site.use.sources:
            continue
        if site.use.meeting is not Meeting.CONTRACTION:
            roles.append("lookup")
        elif site.acts in outputs_of or is_tied(sites, source):
            roles.append("readout")
        else:
            roles.append("kernel")
    order = {"lookup": 0, "kernel": 1, "readout": 2}
    return tuple(sorted(dict.fromkeys(roles), key=order.__getitem__))
