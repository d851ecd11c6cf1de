"""What a report notes of a model: what was assumed, what is unusual, what could not be reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from anyinit._classify.traits import Role
from anyinit._depth.stability import Stability, StabilityVerdict
from anyinit._findings import Finding, Kind
from anyinit._graph.flatten import LOOP_CAP
from anyinit._graph.graph import CappedLoop
from anyinit._plan.shifts import shifted_inputs
from anyinit._propagate.signal import SAMPLES, mean_and_variance
from anyinit._sites.sites import Sites
from anyinit._sites.uses import Meeting
from anyinit._solve.solve import Solution
from anyinit._trace.trace import Model

# A weight whose mean is a larger share of its root mean square is worth a word.
_NOTED_MEAN = 0.2

# The mean of a few drawn numbers is zero only within its standard error.
_STANDARD_ERRORS = 4.0

# A loop whose signal changes by less in its last step counts as settled.
_SETTLED = 0.05


def noted(
    model: Model, sites: Sites, solution: Solution, stability: Stability | None
) -> list[Finding]:
    """Every finding of a plan, in the order in which the report lists them."""
    found = (
        *_assumed(model, sites, solution),
        *_bounded_or_shared(model, sites, solution),
        *_means(model, sites),
        *_not_reached(model, solution),
        *_unstable(stability),
    )
    return list(dict.fromkeys(found))


def _assumed(model: Model, sites: Sites, solution: Solution) -> Iterator[Finding]:
    """Operations without a rule, branches that a gain sets, integers used as numbers."""
    nodes = model.graph.nodes
    for index in sorted(solution.record.assumed):
        yield Finding(Kind.NO_RULE, nodes[index].primitive, nodes[index].where)
    for value in sites.norm_branches:
        node = nodes[model.graph.producers[value]]
        yield Finding(Kind.NORM_GAIN_BRANCH, node.where or node.primitive)
    for use in sites.uses.scaled:
        if use.signal is not None and model.traits[use.signal].role is Role.OPAQUE:
            yield Finding(Kind.OPAQUE_SIGNAL, nodes[use.node].primitive, nodes[use.node].where)


def _bounded_or_shared(model: Model, sites: Sites, solution: Solution) -> Iterator[Finding]:
    """Weights that cannot have what their sites ask for, or that share it with others."""
    names = {value: parameter.name for value, parameter in model.parameters.items()}
    for source in solution.limited:
        node = model.graph.nodes[solution.deciding[source][-1].use.node]
        yield Finding(Kind.RECURRENT, names[source[0]], node.where)
    for use in sites.uses.scaled:
        if use.power > 1:
            factors = list(dict.fromkeys(names[leaf] for leaf, _ in use.sources))
            product = " × ".join(factors)
            yield from (Finding(Kind.WEIGHT_PRODUCT, name, "", product) for name in factors)
    asked: dict[str, list[float]] = {}
    for (leaf, _), scales in solution.disagreeing.items():
        asked.setdefault(names[leaf], []).extend(scales)
    for name, wanted in asked.items():
        detail = f"{min(wanted):.3g} … {max(wanted):.3g}"
        yield Finding(Kind.DISAGREEING_SITES, name, "", detail)


def _means(model: Model, sites: Sites) -> Iterator[Finding]:
    """Weights and inputs with a mean that the plan does not count on."""
    contracted = {
        leaf
        for use in sites.uses.scaled
        if use.meeting is Meeting.CONTRACTION
        for leaf, _ in use.sources
    }
    for leaf in sorted(contracted):
        parameter = model.parameters[leaf]
        if parameter.samples is None or not parameter.samples.ndim:
            continue
        mean, variance = mean_and_variance(parameter.samples)
        share = abs(mean) / math.sqrt(mean**2 + variance)
        entries = min(SAMPLES, math.prod(parameter.shape))
        by_chance = math.sqrt(variance / entries)
        if share > _NOTED_MEAN and abs(mean) > _STANDARD_ERRORS * by_chance:
            yield Finding(Kind.DRAWN_WITH_MEAN, parameter.name, "", f"{share:.2f}")
    for number, where, share in shifted_inputs(model):
        yield Finding(Kind.SHIFTED_INPUT, f"Float input {number}", where, f"{share:.0%}")


def _not_reached(model: Model, solution: Solution) -> Iterator[Finding]:
    """Scales and loops that did not settle, and a model without logits."""
    graph = model.graph
    if solution.unsettled is not None:
        detail = f"relative change {solution.unsettled:.2g} in the last pass"
        yield Finding(Kind.UNSETTLED, "model", "", detail)
    for loop in graph.capped_loops:
        if not _has_settled(loop, solution.record.moments):
            yield Finding(Kind.LOOP_CAPPED, loop.where, loop.where, str(LOOP_CAP))
    if not any(jnp.issubdtype(graph.dtypes[value], jnp.inexact) for value in graph.outputs):
        yield Finding(Kind.NO_FLOAT_OUTPUT, "model")


def _unstable(stability: Stability | None) -> Iterator[Finding]:
    """What to say of a network in which errors grow fast from layer to layer."""
    if stability is None or stability.verdict is not StabilityVerdict.UNSTABLE:
        return
    worst = max(stability.nonlinearities, key=lambda found: found.slope, default=None)
    subject = "the products of signals"
    if worst is not None and worst.verdict is StabilityVerdict.UNSTABLE:
        subject = f"the nonlinearity {worst.function}"
    detail = f"{stability.growth:.3g} over {stability.depth} layers"
    where = worst.where if worst is not None else ""
    yield Finding(Kind.UNSTABLE, subject, where, detail)


def _has_settled(loop: CappedLoop, moments: Mapping[int, float]) -> bool:
    """Whether what a loop carries keeps its second moment from one step to the next."""
    return all(
        math.isclose(moments[before], moments[after], rel_tol=_SETTLED, abs_tol=1e-12)
        for before, after in zip(loop.before, loop.after, strict=True)
        if before in moments and after in moments
    )
