"""The places of a model that are watched: sites of its weights, outputs, residual streams."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from typing import TYPE_CHECKING

from anyinit._sites.sites import Site
from anyinit._sites.sums import Residual

if TYPE_CHECKING:
    from anyinit._plan.analysis import Analysis


class Place(enum.Enum):
    """What kind of place a second moment is known of."""

    SITE = "site of a weight"
    OUTPUT = "output of the model"
    STREAM = "residual stream after an addition"


@dataclasses.dataclass(frozen=True)
class Watched:
    """A place of a model.

    Arguments:
        path: the weight whose site it is, ``"output"``, or the weights added to a stream.
        place: what kind of place it is.
        number: which of the places with this path, in the order of computation.
        site: what acts there.
        where: ``file.py:line`` of it.
        at_most: whether its second moment is predicted from above only.
    """

    path: str
    place: Place
    number: int
    site: str
    where: str
    at_most: bool

    @property
    def name(self) -> str:
        """What identifies the place, whatever the shape of the inputs."""
        return f"{self.path} | {self.place.name} | {self.number}"


def watched(analysis: Analysis) -> dict[int, tuple[Watched, ...]]:
    """The places of an analysed model by value, in the order of computation.

    Arguments:
        analysis: the analysis.
    """
    model = analysis.model
    graph = model.graph
    found: dict[int, list[Watched]] = {}

    def add(value: int, path: str, place: Place, site: str, where: str, at_most: bool) -> None:
        entry = Watched(path, place, 0, site, where, at_most)
        listed = found.setdefault(value, [])
        if entry not in listed:
            listed.append(entry)

    settled = {
        source
        for site in analysis.sites.sites
        if graph.nodes[site.use.node].last_step
        for source in site.use.sources
    }
    for site in analysis.sites.sites:
        # Of a loop the settled step counts, unless a weight is used in earlier ones alone.
        if graph.nodes[site.use.node].last_step or settled.isdisjoint(site.use.sources):
            place = Place.OUTPUT if site.value in model.outputs else Place.SITE
            bound = _is_bound(analysis, site)
            add(site.value, _path(analysis, site), place, site.acts.value, site.where, bound)
    for number, value in enumerate(model.outputs):
        if value not in found:
            path = f"output[{number}]" if len(model.outputs) > 1 else "output"
            where = graph.nodes[graph.producers[value]].where
            add(value, path, Place.OUTPUT, "output", where, model.traits[value].at_most)
    for root, residual in analysis.sites.structure.residuals.items():
        node = graph.nodes[graph.producers[root]]
        path = _branches(analysis, residual)
        if path and node.last_step:
            bound = model.traits[root].at_most or _adds_bound(analysis, residual)
            add(root, path, Place.STREAM, "stream after it", node.where, bound)
    counts: Counter[tuple[str, Place]] = Counter()
    numbered: dict[int, tuple[Watched, ...]] = {}
    for value in sorted(found, key=lambda value: graph.producers[value]):
        entries = []
        for entry in found[value]:
            number = counts[entry.path, entry.place]
            entries.append(dataclasses.replace(entry, number=number))
            counts[entry.path, entry.place] += 1
        numbered[value] = tuple(entries)
    return numbered


def _path(analysis: Analysis, site: Site) -> str:
    names = []
    for leaf, item in site.use.sources:
        name = analysis.model.parameters[leaf].name
        names.append(name if item is None else f"{name}[{item}]")
    return " × ".join(names)


def _is_bound(analysis: Analysis, site: Site) -> bool:
    read = [site.value, *([] if site.use.signal is None else [site.use.signal])]
    return any(analysis.model.traits[value].at_most for value in read)


def _branches(analysis: Analysis, residual: Residual) -> str:
    """The weights at the ends of the branches that an addition adds."""
    values = {v for branch in residual.branches for v in (branch.value, *branch.chain)}
    sites = [s for s in analysis.sites.sites if s.use.value in values or s.value in values]
    return " + ".join(dict.fromkeys(_path(analysis, site) for site in sites))


def _adds_bound(analysis: Analysis, residual: Residual) -> bool:
    """Whether a branch of the same stream, up to here, is known from above only."""
    values = {
        value
        for other in analysis.sites.structure.residuals.values()
        if other.chain == residual.chain and other.root <= residual.root
        for branch in other.branches
        for value in (branch.value, *branch.chain)
    }
    return any(_is_bound(analysis, site) for site in analysis.sites.sites if site.value in values)
