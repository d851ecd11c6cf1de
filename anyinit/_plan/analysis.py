"""The pipeline in one piece: a traced model in, a plan out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from anyinit._classify.traits import Source
from anyinit._depth.growth import stability_of
from anyinit._plan.noted import noted
from anyinit._plan.own_token import with_own_token
from anyinit._plan.plan import LeftAlone, Plan
from anyinit._plan.profile import planned_moments
from anyinit._plan.rows import reason_to_leave, weight_rows
from anyinit._propagate.signal import SAMPLES, mean_and_variance, moment, normal_atom
from anyinit._sites.sites import Site, Sites, find_sites
from anyinit._solve.solve import Solution, solve
from anyinit._trace.trace import Model


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A plan, and everything that it was read off.

    Arguments:
        model: the traced model.
        sites: the sites of all weights.
        solution: the settled scales.
        drawn: samples of the sources that keep their values.
        plan: the plan.
    """

    model: Model
    sites: Sites
    solution: Solution
    drawn: Mapping[Source, np.ndarray]
    plan: Plan


def examine(model: Model, chosen: Callable[[str], bool]) -> Analysis:
    """Plan a traced model, and keep what the plan was read off.

    Arguments:
        model: the traced model.
        chosen: whether the caller wants a path to be scaled.
    """
    graph, traits = model.graph, model.traits
    sites = find_sites(graph, traits, frozenset(model.outputs))
    drawn = _as_drawn(model, sites, chosen)
    solution = solve(graph, traits, sites, model.signals, drawn)
    weights = weight_rows(model, sites, solution)
    planned = {weight.path for weight in weights}
    left = [
        LeftAlone(parameter.name, reason_to_leave(model, sites, solution, value, parameter, chosen))
        for value, parameter in model.parameters.items()
        if parameter.name not in planned
    ]
    stability = stability_of(model, sites, solution, drawn)
    findings = noted(model, sites, solution, stability)
    logits_moment = vocabulary = None
    readout = first_readout(model, sites)
    if readout is not None and readout.output is not None:
        # What all columns have in common (a cap's offset) does not enter the loss.
        logits_moment = mean_and_variance(solution.record.samples[readout.value])[1]
        vocabulary = _classes(model, readout, readout.output)
    weights = with_own_token(model, sites, solution, drawn, weights)
    plan = Plan(
        tuple(weights),
        tuple(left),
        tuple(findings),
        logits_moment,
        vocabulary,
        stability=stability,
    )
    analysis = Analysis(model, sites, solution, drawn, plan)
    plan = dataclasses.replace(plan, moments=planned_moments(analysis))
    return dataclasses.replace(analysis, plan=plan)


def first_readout(model: Model, sites: Sites) -> Site | None:
    """A site of the first logits that the model returns, or else of those that its loss reads."""
    readouts = [site for site in sites.sites if site.output is not None]
    order = {value: place for place, value in enumerate(model.outputs)}
    return min(readouts, key=lambda site: order.get(site.output or 0, len(order)), default=None)


def _classes(model: Model, readout: Site, output: int) -> int:
    """Over how many logits a softmax of an output would be: the columns of its readout."""
    graph = model.graph
    shape = graph.shapes[output]
    columns = round(graph.size(readout.use.weight) / readout.use.fan)
    return columns if columns in shape else shape[model.traits.class_axis(output)]


def _as_drawn(
    model: Model, sites: Sites, chosen: Callable[[str], bool]
) -> dict[Source, np.ndarray]:
    """Samples of the drawn leaves that are not to be scaled."""
    sources = dict.fromkeys(
        source
        for value in range(len(model.graph.shapes))
        if model.traits.of[value] is not None
        for source in model.traits[value].sources
    )
    drawn = {}
    for source in sources:
        parameter = model.parameters[source[0]]
        if source in sites.fixed or not chosen(parameter.name):
            samples = parameter.samples
            if samples is None or not np.isfinite(moment(samples)):
                samples = normal_atom(source[0])
            if samples.ndim:
                samples = samples[np.random.default_rng(source[0]).permutation(SAMPLES)]
            drawn[source] = samples
    return drawn
