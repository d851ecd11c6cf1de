"""The logit of the very token that a tied table looked up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from anyinit._classify.traits import Source
from anyinit._plan.plan import WeightPlan
from anyinit._propagate.propagate import propagate
from anyinit._sites.events import Acts
from anyinit._sites.sites import Site, Sites
from anyinit._solve.solve import Solution
from anyinit._solve.targets import is_table
from anyinit._trace.trace import Model


def with_own_token(
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
        if is_table(lookup) and not is_table(readout) and readout.acts is Acts.OUTPUT
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
