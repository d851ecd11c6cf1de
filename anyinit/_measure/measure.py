"""Measure a model on a batch, and compare every site, output and stream with the plan."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._findings import Finding, Kind
from anyinit._measure.check import Check, MeasuredRow
from anyinit._measure.compiled import batch_findings, program_of
from anyinit._measure.measuring_pass import BatchPass
from anyinit._measure.places import Places
from anyinit._measure.predict import predict
from anyinit._plan.analysis import Analysis
from anyinit._plan.plan import Plan
from anyinit._plan.watched import Place, watched

# An input whose second moment is off by more than this factor is worth a finding.
_INPUT = 1.5

# Relative standard error of the square of one normal number.
_ONE_FEATURE = math.sqrt(2.0)

# Logits below minus this are what a mask fills in.
_FILL = 1e4


def measured_check(
    analysis: Analysis, plan: Plan, leaves: Sequence[Any], arrays: Sequence[Any]
) -> Check:
    """Run a model on a batch and compare.

    Arguments:
        analysis: the analysis of the model.
        plan: the plan to compare with.
        leaves: an array for each parameter.
        arrays: an array for each further input of the graph.
    """
    places = watched(analysis)
    values = list(dict.fromkeys([*places, *analysis.model.signals]))
    found = _statistics(analysis, values, leaves, arrays)
    record = predict(analysis, plan, frozenset(places))
    known = {entry.name: entry.moment for entry in plan.measured}
    drawn = _passed_on(analysis, places, found)
    rows = []
    for value, entries in places.items():
        second, batch, width, finite = found[value]
        for entry in entries:
            predicted = record.moments.get(value)
            if entry.place is Place.OUTPUT and predicted is not None:
                predicted += _own_tokens(analysis, plan, value)
            rows.append(
                MeasuredRow(
                    entry.path,
                    entry.place,
                    entry.site,
                    entry.where,
                    known.get(entry.name, predicted),
                    second if finite else math.nan,
                    entry.at_most and entry.name not in known,
                    None if math.isnan(batch) else batch,
                    width,
                    drawn[value],
                    analysis.model.graph.producers[value],
                )
            )
    rows = [*_once_a_place(rows), *_missed(analysis, plan, places)]
    findings = [*plan.findings, *batch_findings(analysis, arrays), *_inputs(analysis, found)]
    return Check(tuple(rows), tuple(dict.fromkeys(findings)))


def _once_a_place(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """One row for the many steps of a loop: the one that is furthest from its prediction.

    Arguments:
        rows: a row for every value that was measured.
    """
    groups: dict[Hashable, list[MeasuredRow]] = {}
    for row in rows:
        predicted = None if row.predicted is None else f"{row.predicted:.1e}"
        key = (row.path, row.place, row.site, row.where, row.at_most, predicted)
        groups.setdefault(key, []).append(row)
    return [max(group, key=_deviation) for group in groups.values()]


def _deviation(row: MeasuredRow) -> float:
    """How far a measurement is from its prediction; what cannot be told counts as furthest."""
    if row.predicted is None or not row.predicted > 0 or not row.measured > 0:
        return math.inf
    return abs(math.log(row.measured / row.predicted))


def _missed(analysis: Analysis, plan: Plan, places: Mapping[int, Any]) -> list[MeasuredRow]:
    """Rows for planned weights of which no place is known: they are never passed over."""
    measured = {
        analysis.model.parameters[leaf].name
        for site in analysis.sites.sites
        if site.value in places
        for leaf, _ in site.use.sources
    }
    return [
        MeasuredRow(
            row.path,
            Place.SITE,
            row.site,
            row.where,
            None,
            math.nan,
            row.at_most,
            None,
            0.0,
            0.0,
            -1,
        )
        for row in plan.weights
        if row.path not in measured
    ]


_Statistics = tuple[float, float, float, bool]


def _statistics(
    analysis: Analysis, values: Sequence[int], leaves: Sequence[Any], arrays: Sequence[Any]
) -> dict[int, _Statistics]:
    """Second moment of each value, its errors over examples and features, whether it is finite."""
    graph, traits = analysis.model.graph, analysis.model.traits
    outputs = set(analysis.model.outputs)

    def measure(known: dict[int, Any], _: Any) -> list[tuple[Any, ...]]:
        walk = BatchPass(graph, traits, Places(), known, {})
        walk.run()
        return [
            _of(walk.values[value], traits.class_axis(value), value in outputs) for value in values
        ]

    found = jax.device_get(program_of(graph, leaves, arrays, measure)(np.zeros(0, np.float32)))
    return {
        value: (float(second), float(batch), float(width), bool(finite))
        for value, (second, batch, width, finite) in zip(values, found, strict=True)
    }


def _of(array: Any, features: int, is_output: bool) -> tuple[Any, ...]:
    if array.ndim:
        array = jnp.moveaxis(array, features, -1)
    squares = jnp.square(jnp.abs(array).astype(jnp.float32))
    if is_output and not jnp.iscomplexobj(array):
        # What a mask fills in is no logit.
        inside = jnp.logical_not(array <= -_FILL)
        kept = jnp.where(inside, squares, 0)
        count = jnp.sum(jnp.sum(inside, axis=-1, dtype=jnp.float32)) if array.ndim else 1
        squares = kept * (jnp.float32(array.size) / jnp.maximum(count, 1))
    if not squares.ndim:
        return squares, jnp.float32(jnp.nan), jnp.float32(0), jnp.isfinite(squares)
    by_feature = jnp.mean(squares, axis=tuple(range(squares.ndim - 1)))
    examples = jnp.mean(jnp.mean(squares, axis=-1), axis=tuple(range(1, squares.ndim - 1)))
    second = jnp.mean(by_feature)
    width = _error(by_feature) if by_feature.size > 1 else jnp.float32(_ONE_FEATURE)
    return second, _error(examples), width, jnp.isfinite(second)


def _error(parts: Any) -> Any:
    """Relative standard error of the mean of independent parts; NaN for a single one."""
    if parts.size < 2:
        return jnp.float32(jnp.nan)
    mean = jnp.mean(parts)
    spread = jnp.std(parts) / jnp.sqrt(jnp.float32(parts.size - 1))
    return jnp.where(mean > 0, spread / jnp.where(mean > 0, mean, 1), 0)


def _passed_on(
    analysis: Analysis, places: Mapping[int, Any], found: Mapping[int, _Statistics]
) -> dict[int, float]:
    """The relative error that the draws of earlier weights pass on to each place."""
    graph, traits = analysis.model.graph, analysis.model.traits
    squares: dict[int, float] = {}
    passed: dict[int, float] = {}
    for node in graph.nodes:
        entering = max((squares.get(value, 0.0) for value in node.inputs), default=0.0)
        for value in node.outputs:
            trait = traits.of[value]
            kept = 0.0 if trait is None or trait.normalizes is not None else entering
            passed[value] = math.sqrt(kept)
            width = found[value][2] if value in places else 0.0
            squares[value] = kept + (0.0 if math.isnan(width) else width**2)
    return {value: passed.get(value, 0.0) for value in places}


def _own_tokens(analysis: Analysis, plan: Plan, value: int) -> float:
    """What the logits of the tokens that were looked up add to the logits' second moment."""
    for site in analysis.sites.sites:
        if site.output != value:
            continue
        for leaf, _ in site.use.sources:
            row = plan.weight_by_name.get(analysis.model.parameters[leaf].name)
            if row is not None and row.own_token_logit is not None:
                axis = analysis.model.traits.class_axis(value)
                return row.own_token_logit**2 / analysis.model.graph.shapes[value][axis]
    return 0.0


def _inputs(analysis: Analysis, found: Mapping[int, _Statistics]) -> list[Finding]:
    """Float inputs that are larger or smaller than the plan has assumed."""
    findings = []
    for number, (value, samples) in enumerate(analysis.model.signals.items()):
        assumed, second = float(np.mean(np.square(samples))), found[value][0]
        if not assumed / _INPUT <= second <= assumed * _INPUT:
            detail = f"{second:.3g}, assumed {assumed:.3g}"
            findings.append(Finding(Kind.INPUT_MOMENT, f"float input {number}", "", detail))
    return findings
