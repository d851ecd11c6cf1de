"""The site of every use of a weight: what acts there, and what constant factors lead to it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from anyinit._classify.ancestry import find_ancestry
from anyinit._classify.traits import Source, Traits
from anyinit._findings import Reason
from anyinit._graph.graph import Graph
from anyinit._sites.events import Acts, Structure
from anyinit._sites.lineage import multiples
from anyinit._sites.lookthrough import look_through
from anyinit._sites.path import Path
from anyinit._sites.repeated import identities
from anyinit._sites.sums import Residual, Sums, find_residuals, only_lookups
from anyinit._sites.transposed import with_transposes
from anyinit._sites.uses import Meeting, Use, Uses, find_uses, leaf_rank
from anyinit._sites.walk import Landing, land


@dataclasses.dataclass(frozen=True)
class Site:
    """Where one use of a weight lands.

    Arguments:
        use: the use.
        acts: what acts at the site.
        value: the value at the site.
        where: source line of what acts there.
        product: the product of two signals, where that is what acts.
        product_gain: factor on that product's second moment up to what acts on it in turn.
        path_factor: product of the constant factors from the use to the site.
        path_gain: factor on the second moment from the use to the site.
        before: product of the constant factors on the weight and on its input.
        terms: number of weight terms that share the site's target.
        peers: the uses that meet this one in a sum of lookups, itself left out.
        additions: N, for a residual branch.
        coherent: how many of the N additions this weight's own terms serve.
        on_input: the part of ``before`` that is on the input.
        output: the model's output that is read here, where that is what acts.
        gated: whether a product with another signal lies between the use and the stream.
        scales_input: whether ``on_input`` are constants on an input of the model itself, which
            only bring its numbers to another size.
    """

    use: Use
    acts: Acts
    value: int
    where: str
    product: int | None
    product_gain: float
    path_factor: float
    path_gain: float
    before: float
    terms: int
    peers: tuple[Use, ...]
    additions: int = 1
    coherent: int = 1
    on_input: float = 1.0
    output: int | None = None
    gated: bool = False
    scales_input: bool = False

    @property
    def counted(self) -> bool:
        """Whether the constant factors count for the scale and the learning rate."""
        if self.acts is Acts.NORMALIZATION:
            return self.use.meeting is not Meeting.CONTRACTION
        return self.acts not in (Acts.RESIDUAL, Acts.PRODUCT)

    @property
    def factor(self) -> float:
        """c, the constant factor that counts; 1 where none does."""
        return self.path_factor * self.before if self.counted else 1.0


@dataclasses.dataclass(frozen=True)
class Sites:
    """All that the structure says about a model's weights.

    Arguments:
        sites: the sites of each use.
        fixed: sources that are left alone, with the reason.
        norm_branches: values of residual branches that end in a normalization.
        uses: the uses themselves.
        structure: the sums and streams that they were read off.
    """

    sites: tuple[Site, ...]
    fixed: Mapping[Source, Reason]
    norm_branches: tuple[int, ...]
    uses: Uses
    structure: Structure


def find_sites(graph: Graph, traits: Traits, outputs: frozenset[int]) -> Sites:
    """Find the sites of all weights.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        outputs: the model's outputs that are logits or signals, scalar losses left out.
    """
    uses = with_transposes(graph, traits, find_uses(graph, traits))
    lineage = multiples(graph, traits, uses.by_value.keys())
    sums = Sums(graph, traits, uses, find_ancestry(graph, traits), lineage)
    residuals = dict(find_residuals(sums))
    structure = Structure(sums, residuals, outputs)
    fixed = dict(uses.fixed)
    found: list[tuple[Use, Landing, bool]] = []
    for use in uses.scaled:
        reason = _table_reason(sums, use)
        if reason is not None:
            for source in use.sources:
                fixed.setdefault(source, reason)
            continue
        landings = land(structure, use.value, Path())
        found += [(use, *look_through(structure, landing)) for landing in landings]
    product_sites = {
        (event.node, term_use.value)
        for term_use, landing, _ in found
        for event in landing.events
        if landing.value == event.value
    }
    sites = [
        dataclasses.replace(_site(structure, use, landing, product_sites), gated=gated)
        for use, landing, gated in found
    ]
    # A table that is read out as well has its scale from there.
    sited = {source for use, _, _ in found for source in use.sources}
    fixed = {
        source: reason
        for source, reason in fixed.items()
        if reason not in (Reason.SCALE_FREE, Reason.ADDED_TABLE) or source not in sited
    }
    return Sites(
        tuple(_with_coherence(sums, sites, found, residuals)),
        fixed,
        tuple(_norm_branches(sums, residuals)),
        uses,
        structure,
    )


def _table_reason(sums: Sums, use: Use) -> Reason | None:
    """Why a table that is added to something else than lookups is left as drawn."""
    if use.meeting is Meeting.CONTRACTION:
        return None
    start = use.value
    if use.meeting is Meeting.ADDED:
        start = sums.graph.nodes[use.node].outputs[0]
    if any(len(sums.terms(root)) <= 1 or only_lookups(sums, root) for root in sums.roots(start)):
        return None
    if use.meeting is Meeting.ADDED and leaf_rank(sums.graph, sums.traits, use.weight) <= 1:
        return Reason.BIAS
    return Reason.ADDED_TABLE


def _site(
    structure: Structure,
    use: Use,
    landing: Landing,
    product_sites: set[tuple[int, int]],
) -> Site:
    sums = structure.sums
    event = landing.events[0]
    node = sums.graph.nodes[event.node if event.node >= 0 else use.node]
    terms, peers, additions = _sharing(structure, use, landing)
    on_input = _factor_on_input(sums, use, product_sites)
    product = node.outputs[0] if landing.acts is Acts.PRODUCT else None
    beyond = [] if product is None else land(structure, product, Path())
    return Site(
        use,
        landing.acts,
        landing.value,
        node.where,
        product,
        beyond[0].path.gain if beyond else 1.0,
        abs(landing.path.factor),
        landing.path.gain,
        on_input * abs(sums.multiples[use.weight].factor),
        terms,
        peers,
        additions,
        on_input=on_input,
        output=event.value if landing.acts is Acts.OUTPUT else None,
        scales_input=on_input != 1.0 and _is_input(sums, use),
    )


def _is_input(sums: Sums, use: Use) -> bool:
    """Whether a use reads a multiple of an input of the model."""
    return use.signal is not None and sums.multiples[use.signal].origin in sums.graph.inputs


def _sharing(structure: Structure, use: Use, landing: Landing) -> tuple[int, tuple[Use, ...], int]:
    """How many terms share a site's target, the lookups among them, and N of a residual stream."""
    event = landing.events[0]
    if landing.acts is Acts.RESIDUAL and event.residual is not None:
        residual = structure.residuals[event.residual]
        branches = {t.value if t.use is None else t.use for t in residual.branches if not t.is_zero}
        return max(len(branches), 1), (), residual.count
    sums = structure.sums
    # What is added after the value has forked (value + advantage − mean(advantage)) counts too.
    terms = {*sums.terms(landing.value), *sums.terms(event.value)}
    uses = {t.use: sums.uses.by_value[t.use] for t in terms if t.use is not None and not t.is_zero}
    is_lookup = use.meeting is not Meeting.CONTRACTION
    alike = [u for u in uses.values() if (u.meeting is not Meeting.CONTRACTION) == is_lookup]
    peers = tuple(other for other in alike if other.value != use.value) if is_lookup else ()
    return max(len(alike), 1), peers, 1


def _factor_on_input(sums: Sums, use: Use, product_sites: set[tuple[int, int]]) -> float:
    """Product of the constant factors on a use's input since it was made.

    A factor that already counts for the weight before it (that weight's site is this use) is not
    counted a second time.
    """
    if use.signal is None:
        return 1.0
    entering = sums.multiples[use.signal]
    terms = [term.use for term in sums.terms(entering.origin)]
    if any(term is not None and (use.node, term) in product_sites for term in terms):
        return 1.0
    return abs(entering.factor)


def _with_coherence(
    sums: Sums,
    sites: list[Site],
    found: list[tuple[Use, Landing, bool]],
    residuals: dict[int, Residual],
) -> list[Site]:
    """A weight that serves several additions of one stream adds in step with itself."""
    known = identities(sums.graph, sums.traits, sums.uses.scaled)
    served: Counter[tuple[int, int]] = Counter()
    keys: list[tuple[int, int] | None] = []
    for site, (_, landing, _) in zip(sites, found, strict=True):
        residual = landing.events[0].residual
        identity = known.get(site.use.node)
        if site.acts is not Acts.RESIDUAL or residual is None or identity is None:
            keys.append(None)
            continue
        keys.append((identity, residuals[residual].chain))
        served[identity, residuals[residual].chain] += 1
    return [
        site if key is None else dataclasses.replace(site, coherent=served[key])
        for site, key in zip(sites, keys, strict=True)
    ]


def _norm_branches(sums: Sums, residuals: dict[int, Residual]) -> list[int]:
    return [
        branch.value
        for residual in residuals.values()
        for branch in residual.branches
        if sums.traits[branch.value].normalizes is not None
    ]
