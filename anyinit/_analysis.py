"""The pipeline in one piece: a traced model in, a plan out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from anyinit._findings import Finding, Kind
from anyinit._flatten import LOOP_CAP
from anyinit._graph import CappedLoop
from anyinit._growth import stability_of
from anyinit._own_token import with_own_token
from anyinit._plan import LeftAlone, Plan
from anyinit._profile import planned_moments
from anyinit._rows import reason_to_leave, weight_rows
from anyinit._shifts import shifted_inputs
from anyinit._signal import SAMPLES, mean_and_variance, moment, normal_atom
from anyinit._sites import Site, Sites, find_sites
from anyinit._solve import Solution, solve
from anyinit._stability import Stability, StabilityVerdict
from anyinit._trace import Model
from anyinit._traits import Role, Source
from anyinit._uses import Meeting

# A weight whose mean is a larger share of its root mean square is worth a word.
_NOTED_MEAN = 0.2

# The mean of a few drawn numbers is zero only within its standard error.
_STANDARD_ERRORS = 4.0

# A loop whose signal changes by less in its last step counts as settled.
_SETTLED = 0.05


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
    findings = [*_findings(model, sites, solution), *_unstable(stability)]
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


def _findings(model: Model, sites: Sites, solution: Solution) -> list[Finding]:
    graph = model.graph
    found = [
        Finding(Kind.NO_RULE, graph.nodes[index].primitive, graph.nodes[index].where)
        for index in sorted(solution.record.assumed)
    ]
    for value in sites.norm_branches:
        node = graph.nodes[graph.producers[value]]
        found.append(Finding(Kind.NORM_GAIN_BRANCH, node.where or node.primitive))
    for use in sites.uses.scaled:
        if use.signal is not None and model.traits[use.signal].role is Role.OPAQUE:
            node = graph.nodes[use.node]
            found.append(Finding(Kind.OPAQUE_SIGNAL, node.primitive, node.where))
    for source in solution.limited:
        node = graph.nodes[solution.deciding[source][-1].use.node]
        found.append(Finding(Kind.RECURRENT, model.parameters[source[0]].name, node.where))
    for use in sites.uses.scaled:
        if use.power > 1:
            paths = [model.parameters[leaf].name for leaf, _ in use.sources]
            found += [
                Finding(Kind.WEIGHT_PRODUCT, path, "", " × ".join(dict.fromkeys(paths)))
                for path in dict.fromkeys(paths)
            ]
    asked: dict[str, list[float]] = {}
    for (leaf, _), scales in solution.disagreeing.items():
        asked.setdefault(model.parameters[leaf].name, []).extend(scales)
    found += [
        Finding(Kind.DISAGREEING_SITES, path, "", f"{min(scales):.3g} … {max(scales):.3g}")
        for path, scales in asked.items()
    ]
    contracted = {
        leaf
        for use in sites.uses.scaled
        if use.meeting is Meeting.CONTRACTION
        for leaf, _ in use.sources
    }
    for leaf in sorted(contracted):
        samples = model.parameters[leaf].samples
        if samples is not None and samples.ndim:
            mean, variance = mean_and_variance(samples)
            share = abs(mean) / math.sqrt(mean**2 + variance)
            entries = min(SAMPLES, math.prod(model.parameters[leaf].shape))
            by_chance = math.sqrt(variance / entries)
            if share > _NOTED_MEAN and abs(mean) > _STANDARD_ERRORS * by_chance:
                path = model.parameters[leaf].name
                found.append(Finding(Kind.DRAWN_WITH_MEAN, path, "", f"{share:.2f}"))
    found += [
        Finding(Kind.SHIFTED_INPUT, f"Float input {number}", where, f"{share:.0%}")
        for number, where, share in shifted_inputs(model)
    ]
    if solution.unsettled is not None:
        detail = f"relative change {solution.unsettled:.2g} in the last pass"
        found.append(Finding(Kind.UNSETTLED, "model", "", detail))
    found += [
        Finding(Kind.LOOP_CAPPED, loop.where, loop.where, str(LOOP_CAP))
        for loop in graph.capped_loops
        if not _has_settled(loop, solution.record.moments)
    ]
    if not any(jnp.issubdtype(graph.dtypes[value], jnp.inexact) for value in graph.outputs):
        found.append(Finding(Kind.NO_FLOAT_OUTPUT, "model"))
    return list(dict.fromkeys(found))


def _unstable(stability: Stability | None) -> list[Finding]:
    """What to say of a network in which errors grow fast from layer to layer."""
    if stability is None or stability.verdict is not StabilityVerdict.UNSTABLE:
        return []
    worst = max(stability.nonlinearities, key=lambda found: found.slope, default=None)
    subject = "the products of signals"
    if worst is not None and worst.verdict is StabilityVerdict.UNSTABLE:
        subject = f"the nonlinearity {worst.function}"
    detail = f"{stability.growth:.3g} over {stability.depth} layers"
    where = worst.where if worst is not None else ""
    return [Finding(Kind.UNSTABLE, subject, where, detail)]


def _has_settled(loop: CappedLoop, moments: Mapping[int, float]) -> bool:
    """Whether what a loop carries keeps its second moment from one step to the next."""
    return all(
        math.isclose(moments[before], moments[after], rel_tol=_SETTLED, abs_tol=1e-12)
        for before, after in zip(loop.before, loop.after, strict=True)
        if before in moments and after in moments
    )
