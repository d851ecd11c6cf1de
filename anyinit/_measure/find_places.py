"""Find where each weight of an analysed model is measured."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from anyinit._classify.traits import Source
from anyinit._measure.linear_way import collects_steps, linear_way
from anyinit._measure.places import Excess, Measured, Measurement, MeasuringPoint, Places
from anyinit._plan.analysis import Analysis
from anyinit._sites.events import Acts
from anyinit._sites.path import Path
from anyinit._sites.sites import Site
from anyinit._sites.uses import Use
from anyinit._sites.walk import Landing, land
from anyinit._solve.demands import Problem, problem_of
from anyinit._solve.targets import arrival_of, target, wanted


def find_places(analysis: Analysis) -> Places:
    """Where the weights of an analysed model are measured.

    Arguments:
        analysis: the analysis.
    """
    model, sites, solution = analysis.model, analysis.sites, analysis.solution
    repeated = solution.repeated
    problem = problem_of(model.graph, analysis.model.traits, sites, analysis.drawn, repeated)
    planned = frozenset(s for s in problem.deciding if s not in solution.silent)
    finder = _Finder(analysis, problem, planned & solution.sigma.keys())
    excesses = finder.excesses()
    uses: dict[int, Measured] = {}
    shared: dict[Source, tuple[Site, ...]] = {}
    for use in sites.uses.scaled:
        sources = tuple(source for source in use.sources if source in finder.planned)
        single = all(source in problem.single for source in sources)
        deciding = {id(s) for source in sources for s in problem.deciding[source]}
        if not sources or not (single or any(id(s) in deciding for s in problem.of_use[use.value])):
            continue
        found = finder.measurements(use, excesses)
        if found:
            held = [problem.limits[s] / solution.sigma[s] for s in sources if s in problem.limits]
            uses[use.node] = Measured(use, found, sources, single, min(held, default=None))
            shared.update((s, problem.deciding[s]) for s in sources if s not in problem.single)
    carriers = {}
    for use in sites.uses.scaled:
        power = use.power / max(len(use.sources), 1)
        carried = {source: power for source in use.sources if source in shared}
        if carried:
            carriers[use.node] = (use, carried)
    measured = {
        product: excess
        for product, excess in excesses.items()
        if all(node in uses for side in excess.sides for node in side)
    }
    return Places(uses, measured, shared, carriers)


@dataclasses.dataclass(frozen=True)
class _Finder:
    """What is measured, read off an analysis.

    Arguments:
        analysis: the analysis.
        problem: what it had to solve.
        planned: the sources that are to be scaled.
    """

    analysis: Analysis
    problem: Problem
    planned: frozenset[Source]

    def measurements(self, use: Use, excesses: Mapping[int, Excess]) -> tuple[Measurement, ...]:
        sites = self.problem.of_use[use.value]
        landings = land(self.analysis.sites.structure, use.value, Path())
        pairs = zip(sites, landings, strict=True)
        found = [self._measurement(site, landing, excesses) for site, landing in pairs]
        return tuple(m for m in found if m is not None)

    def _measurement(
        self, site: Site, landing: Landing, excesses: Mapping[int, Excess]
    ) -> Measurement | None:
        graph, traits = self.analysis.model.graph, self.analysis.model.traits
        solution = self.analysis.solution
        shares = dict(solution.shares)
        if site.product in excesses:
            shares[site.product or 0] = 1.0
        start = site.use.value
        at_most = None
        if site.gated:
            behind = linear_way(graph, traits, start, site.value)
            if behind is not None:
                allowed = target(site, shares) * site.path_gain * site.before**2
                at_most = MeasuringPoint(behind, site.value, allowed)
                shares[start] = 1.0
        matched = arrival_of(self.problem.of_use, self.problem.tied, solution.sigma, site)
        output = None
        if site.product is not None and site.product not in excesses and self._leads_alone(site):
            output = self._at_output(start)
        goal = wanted(site, shares, None if matched is None else matched[0])
        if goal is None or goal <= 0:
            return None
        way = linear_way(graph, traits, start, landing.value)
        place = MeasuringPoint((), start, goal)
        if way is not None and landing.path.gain > 0:
            place = MeasuringPoint(way, landing.value, goal * landing.path.gain)
        hidden = way is None and landing.value == site.output
        steps = hidden and site.terms == 1 and collects_steps(graph, start, landing.value)
        masked = site.path_gain if hidden and not steps else None
        sources = () if matched is None else matched[1]
        return Measurement(site, place, output, at_most, sources, masked, steps)

    def _leads_alone(self, site: Site) -> bool:
        """Whether no weight is behind the other side of a product."""
        sides = {s.value for s in self.analysis.sites.sites if s.product == site.product}
        return len(sides) == 1

    def _at_output(self, start: int) -> MeasuringPoint | None:
        """The output that a value leads to linearly, and its share of the target there."""
        model, structure = self.analysis.model, self.analysis.sites.structure
        for output in model.outputs:
            way = linear_way(model.graph, model.traits, start, output)
            if way is not None:
                terms = {t.value for t in structure.sums.terms(output) if not t.is_zero}
                return MeasuringPoint(way, output, 1.0 / max(len(terms), 1))
        return None

    def excesses(self) -> dict[int, Excess]:
        """The products of which both sides can be corrected where the product is made."""
        sides: dict[int, dict[int, list[Site]]] = defaultdict(lambda: defaultdict(list))
        for site in self.analysis.sites.sites:
            if site.product is not None:
                sides[site.product][site.value].append(site)
        found = {}
        for product, by_value in sides.items():
            every = [site for group in by_value.values() for site in group]
            sources = {source for site in every for source in site.use.sources}
            shared = sources.isdisjoint(self.problem.single)
            if len(by_value) < 2 or not sources <= self.planned:
                continue
            uses = tuple(tuple(s.use.node for s in group) for group in by_value.values())
            output = self._at_output(product)
            correctable = all(self._is_correctable(site, product) for site in every)
            if output is not None and (shared or correctable):
                found[product] = Excess(product, output, True, uses, not correctable)
            if output is not None or not correctable:
                continue
            found[product] = Excess(product, self._acted_on(product), False, uses)
        return found

    def _acted_on(self, product: int) -> MeasuringPoint:
        """Where something nonlinear acts on a product, further factors from signals included."""
        model, structure = self.analysis.model, self.analysis.sites.structure
        place, value = MeasuringPoint((), product, 1.0), product
        while len(beyond := land(structure, value, Path())) == 1:
            landing = beyond[0]
            way = linear_way(model.graph, model.traits, product, landing.value)
            if way is None:
                gain = landing.path.gain
                return dataclasses.replace(place, goal=1.0 / gain) if gain > 0 else place
            place = MeasuringPoint(way, landing.value, 1.0)
            if landing.acts is not Acts.PRODUCT or len(landing.events) > 1:
                break
            value = model.graph.nodes[landing.events[0].node].outputs[0]
            way = linear_way(model.graph, model.traits, product, value)
            if way is None:
                break
            place = MeasuringPoint(way, value, 1.0)
        return place

    def _is_correctable(self, site: Site, product: int) -> bool:
        """Whether a side is read by one product alone, and its weights by nothing else."""
        graph = self.analysis.model.graph
        readers = self.analysis.sites.structure.sums.live_consumers(site.value)
        return (
            site.acts is Acts.PRODUCT
            and len(self.problem.of_use[site.use.value]) == 1
            and readers == [graph.producers[product]]
            and all(s in self.problem.single for s in site.use.sources)
        )
