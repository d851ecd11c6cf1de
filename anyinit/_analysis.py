"""The pipeline in one piece: a traced model in, a plan out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from anyinit._findings import Finding, Kind, Reason
from anyinit._plan import LeftAlone, Plan, WeightPlan
from anyinit._propagate import propagate
from anyinit._signal import SAMPLES, mean_and_variance, moment, normal_atom
from anyinit._sites import Site, Sites, find_sites
from anyinit._solve import Solution, role_names, solve, target
from anyinit._trace import Model, Parameter
from anyinit._traits import Role, Source
from anyinit._uses import Meeting
from anyinit._walk import Acts


def analyse(model: Model, chosen: Callable[[str], bool]) -> Plan:
    """Plan the scale of every drawn weight of a traced model.

    Arguments:
        model: the traced model.
        chosen: whether the caller wants a path to be scaled.
    """
    graph, traits = model.graph, model.traits
    sites = find_sites(graph, traits, frozenset(model.outputs))
    findings: list[Finding] = []
    drawn = _as_drawn(model, sites, chosen)
    solution = solve(graph, traits, sites, model.signals, drawn)
    weights = _weights(model, sites, solution, findings)
    planned = {weight.path for weight in weights}
    left = [
        LeftAlone(parameter.name, _reason(model, sites, solution, value, parameter, chosen))
        for value, parameter in model.parameters.items()
        if parameter.name not in planned
    ]
    findings += _findings(model, sites, solution)
    logits = next(iter(model.outputs), None)
    logits_moment = vocabulary = None
    if logits is not None and any(site.acts is Acts.OUTPUT for site in sites.sites):
        # What all columns have in common (log_softmax, a cap's offset) does not enter the loss.
        logits_moment = mean_and_variance(solution.record.samples[logits])[1]
        vocabulary = graph.shapes[logits][-1]
    weights = _with_own_token(model, sites, solution, drawn, weights)
    return Plan(tuple(weights), tuple(left), tuple(findings), logits_moment, vocabulary)


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


def _weights(
    model: Model, sites: Sites, solution: Solution, findings: list[Finding]
) -> list[WeightPlan]:
    by_leaf: dict[int, list[Source]] = {}
    for source in solution.deciding:
        if source not in solution.silent and source in solution.sigma:
            by_leaf.setdefault(source[0], []).append(source)
    weights = []
    for leaf, sources in by_leaf.items():
        parameter = model.parameters[leaf]
        sources.sort(key=lambda source: -1 if source[1] is None else source[1])
        found = [site for source in sources for site in solution.deciding[source]]
        first = found[0]
        entering = solution.record.asked.get(first.use.value, (1.0, 1.0))[0]
        factor = math.exp(sum(math.log(abs(s.factor)) for s in found) / len(found))
        factor = 1.0 if math.isclose(factor, 1.0, rel_tol=1e-6) else factor
        scales = tuple(solution.sigma[source] for source in sources)
        stacked = sources[0][1] is not None
        lookups = [s for s in sites.sites if s.use.sources == (sources[0],) and _is_table(s)]
        arrival = None
        if lookups:
            weight = solution.sigma[sources[0]] ** 2
            arrival = weight * lookups[0].path_gain * lookups[0].before ** 2
        signal = first.use.signal
        before = None if parameter.samples is None else math.sqrt(_variance(parameter.samples))
        weights.append(
            WeightPlan(
                path=parameter.name,
                shape=parameter.shape,
                dtype=str(parameter.dtype),
                roles=role_names(sites, sources[0], {Acts.OUTPUT}),
                site="arrival of a lookup" if _is_table(first) else first.acts.value,
                where=first.where,
                fan=round(first.use.fan),
                moment_in=entering,
                c=factor,
                target=target(first, solution.shares),
                at_most=signal is not None and model.traits[signal].at_most,
                std_before=before,
                sigma=scales if stacked else scales[0],
                m=1.0 / factor,
                aliases=parameter.aliases,
                arrival=arrival,
            )
        )
    return weights


def _is_table(site: Site) -> bool:
    return site.use.meeting is not Meeting.CONTRACTION


def _variance(samples: np.ndarray) -> float:
    return mean_and_variance(samples)[1]


def _reason(
    model: Model,
    sites: Sites,
    solution: Solution,
    value: int,
    parameter: Parameter,
    chosen: Callable[[str], bool],
) -> Reason:
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


def _findings(model: Model, sites: Sites, solution: Solution) -> list[Finding]:
    graph = model.graph
    found = [
        Finding(Kind.NO_RULE, graph.nodes[index].primitive, graph.nodes[index].where)
        for index in sorted(solution.record.assumed)
    ]
    for value in sites.norm_branches:
        node = graph.nodes[graph.producers[value]]
        found.append(Finding(Kind.NORM_GAIN_BRANCH, node.primitive, node.where))
    for use in sites.uses.scaled:
        if use.signal is not None and model.traits[use.signal].role is Role.OPAQUE:
            node = graph.nodes[use.node]
            found.append(Finding(Kind.OPAQUE_SIGNAL, node.primitive, node.where))
    if solution.unsettled is not None:
        detail = f"relative change {solution.unsettled:.2g} in the last pass"
        found.append(Finding(Kind.UNSETTLED, "model", "", detail))
    found += [
        Finding(Kind.LOOP_CAPPED, where, where, "32") for where in graph.capped_loops if where
    ]
    return list(dict.fromkeys(found))


def _with_own_token(
    model: Model,
    sites: Sites,
    solution: Solution,
    drawn: Mapping[Source, np.ndarray],
    weights: list[WeightPlan],
) -> list[WeightPlan]:
    """The expected logit of the looked-up token, with tokens taken as independent."""
    tied: dict[Source, list[Site]] = {}
    for site in sites.sites:
        for source in site.use.sources:
            tied.setdefault(source, []).append(site)
    pairs = {
        source: (lookup.use, readout)
        for source, found in tied.items()
        for lookup in found[:1]
        for readout in found
        if _is_table(lookup) and not _is_table(readout) and readout.acts is Acts.OUTPUT
    }
    if not pairs:
        return weights
    kept = frozenset(
        value
        for lookup, readout in pairs.values()
        for value in (lookup.value, readout.use.signal)
        if value is not None
    )
    traits = dataclasses.replace(model.traits, independent_tokens=True)
    record = propagate(
        model.graph,
        traits,
        model.signals,
        solution.sigma,
        drawn,
        {},
        lambda *_: 1.0,
        frozenset(),
        kept,
    )
    own = {}
    for source, (lookup, readout) in pairs.items():
        name = model.parameters[source[0]].name
        signal = record.samples[readout.use.signal or 0]
        row = record.samples[lookup.value]
        weight_factor = readout.path_factor
        own[name] = readout.use.fan * float(np.mean(signal * row)) * weight_factor
    return [dataclasses.replace(weight, own_token_logit=own.get(weight.path)) for weight in weights]
