"""One pass over the flat graph with real arrays: every site is measured, and its weight corrected.

What a weight makes is linear in the weight. So each product is multiplied by the one number that
its site asks for as soon as it is made, and all that follows sees the corrected signal: a network
of any depth is settled in one pass. Only weights with several uses need more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyinit._classify.traits import Source, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node, before_layout
from anyinit._graph.run import reads, run_node
from anyinit._measure.linear_way import delivered
from anyinit._measure.moments import moment, scaled, step_to, wide_dtype
from anyinit._measure.places import Excess, Measured, Measurement, MeasuringPoint, Places
from anyinit._sites.uses import Meeting, Use

Carrier = tuple[Use, Mapping[Source, float]]


@dataclasses.dataclass
class Seen:
    """What a pass has measured, as arrays without axes.

    Arguments:
        entering: second moment of what enters each use, by the use's node.
        delivered: what each use delivers at each of its sites, before it is corrected.
        steps: by how much each site asks to multiply the weight.
        factors: by how much each use's product was multiplied.
        excess: by how much each product of two signals was, or is to be, multiplied.
        means: mean of what each use delivers to an output, corrected.
        totals: second moment of each watched value.
    """

    entering: dict[int, Any]
    delivered: dict[int, list[Any]]
    steps: dict[int, list[Any]]
    factors: dict[int, Any]
    excess: dict[int, Any]
    means: dict[int, Any]
    totals: dict[int, Any]


jax.tree_util.register_dataclass(Seen)


class _InProgress(Exception):
    """A value depends on a weight whose correction is being computed."""


class BatchPass:
    """Values of a graph, computed in order or when they are asked for.

    Arguments:
        graph: the flattened model.
        traits: what each value is.
        places: what is measured; without any, the graph is only run.
        values: arrays of the inputs and literals; changed in place.
        factors: by how much the sources that have several uses are multiplied.
    """

    def __init__(
        self,
        graph: Graph,
        traits: Traits,
        places: Places,
        values: dict[int, Any],
        factors: Mapping[Source, Any],
    ) -> None:
        self.graph, self.traits, self.places = graph, traits, places
        self.values, self.factors = values, factors
        self.seen = Seen({}, {}, {}, {}, {}, {}, {})
        self._nodes = {v: node for node in (*graph.unread, *graph.nodes) for v in node.outputs}
        self._open: set[int] = set()
        self._known: dict[int, Any] = {}
        self._weights: dict[int, Any] = {}

    def run(self) -> None:
        """Compute every value of the graph."""
        for node in self.graph.nodes:
            self._ensure(node.outputs)
        for index, steps in self.seen.steps.items():
            use = self.places.uses[index]
            for number, measurement in enumerate(use.measurements):
                output = measurement.site.output
                if measurement.steps and output is not None:
                    whole = moment(self.values[output])
                    steps[number] = step_to(whole, jnp.float32(1 / measurement.site.terms))
                    if use.single:
                        self.seen.factors[index] *= steps[number]
                        self._known[output] = whole * steps[number] * steps[number]

    def total(self, value: int) -> Any:
        """Second moment of a value, as far as it is not the fill of a mask."""
        return self._known[value] if value in self._known else moment(self.values[value])

    def value_of(self, value: int) -> Any:
        """One value, computed with all that it depends on if it is not known yet."""
        self._ensure((value,))
        return self.values[value]

    def _ensure(self, wanted: Sequence[int]) -> None:
        pending = [value for value in wanted if value not in self.values]
        order: dict[int, Node] = {}
        while pending:
            value = pending[-1]
            node = self._nodes[value]
            missing = [v for v in reads(node) if v not in self.values and v not in order]
            if missing:
                pending += missing
                continue
            pending.pop()
            order.update(dict.fromkeys(node.outputs, node))
        for node in order.values():
            if node.outputs[0] not in self.values:
                self._step(node)

    def _step(self, node: Node) -> None:
        if node.index in self._open:
            raise _InProgress
        use, carrier = self.places.uses.get(node.index), self.places.carriers.get(node.index)
        any_use = use.use if use is not None else carrier[0] if carrier is not None else None
        added = any_use is not None and any_use.meeting is Meeting.ADDED
        values: Mapping[int, Any] = self.values
        if any_use is not None and added:
            # Elsewhere the same table may be added, too: it is scaled in the place of this use.
            table = self._carried(carrier, self.values[any_use.weight])
            values = ChainMap({any_use.weight: self._corrected(use, table)}, self.values)
        results = run_node(self.graph, node, values)
        if node.index < 0:
            factor = self._factor_of(node)
            results = results if factor is None else [scaled(results[0], factor), *results[1:]]
        if any_use is not None and not added:
            results[0] = self._corrected(use, self._carried(carrier, results[0]))
        excess = self.places.excesses.get(node.outputs[0])
        if excess is not None:
            results[0] = self._reduced(excess, results[0])
        self.values.update(zip(node.outputs, results, strict=True))

    def _factor_of(self, node: Node) -> Any:
        """What a step of a loop that no rule looks at has to be multiplied by.

        Its weights are those of the step that was measured.
        """
        weights = [self._weights.get(self._leaf(value)) for value in node.inputs]
        found = [factor for factor in weights if factor is not None]
        met = node.primitive in primitives.CONTRACTIONS | {"gather"}
        return math.prod(found) if found and met else None

    def _leaf(self, value: int) -> int:
        """The value that a view or cast of a weight was made from."""
        return before_layout(self._nodes.get, value)

    def _carried(self, carrier: Carrier | None, product: Any) -> Any:
        """A use's product, multiplied by what weights with several uses have been given so far."""
        if carrier is None:
            return product
        use, powers = carrier
        factor = math.prod(self.factors[source] ** power for source, power in powers.items())
        self._weights[self._leaf(use.weight)] = factor
        return scaled(product, factor)

    def _corrected(self, use: Measured | None, product: Any) -> Any:
        """A use's product, multiplied by what its sites ask for."""
        if use is None:
            return product
        node, seen = use.use.node, self.seen
        self._open.add(node)
        signal = use.use.signal
        seen.entering[node] = jnp.float32(1) if signal is None else moment(self.values[signal])
        try:
            asked = [self._asked(use, measurement, product) for measurement in use.measurements]
        finally:
            self._open.discard(node)
        seen.delivered[node] = [found for found, _ in asked]
        seen.steps[node] = [step for _, step in asked]
        if not use.single:
            self._note(use, product, jnp.float32(1))
            return product
        factor = jnp.exp(jnp.mean(jnp.stack([jnp.log(step) for step in seen.steps[node]])))
        if use.limit is not None:
            factor = jnp.minimum(factor, jnp.float32(use.limit))
        seen.factors[node] = factor
        self._weights[self._leaf(use.use.weight)] = factor
        self._note(use, product, factor)
        return scaled(product, factor)

    def _note(self, use: Measured, product: Any, factor: Any) -> None:
        """Keep what is known already of values behind a product.

        Logits are the largest arrays of a model: each look at them that is saved is a copy less.
        """
        for measurement, found in zip(
            use.measurements, self.seen.delivered[use.use.node], strict=True
        ):
            site, place = measurement.site, measurement.place
            moment_ = found * factor * factor
            if measurement.masked is not None and site.output is not None:
                before = self._known.get(site.output, 0)
                self._known[site.output] = before + moment_ * measurement.masked
            elif not place.way and measurement.output is None:
                self._known[place.end] = moment_
            if site.output is not None:
                arrived = self._arrived(place, use.use.value, product)
                mean = jnp.mean(jnp.mean(jnp.real(arrived).astype(wide_dtype(arrived)), axis=-1))
                gain = measurement.masked or 1.0
                self.seen.means[use.use.node] = mean * factor * jnp.float32(math.sqrt(gain))

    def _asked(self, use: Measured, measurement: Measurement, product: Any) -> tuple[Any, Any]:
        start = use.use.value
        if measurement.output is not None:
            with contextlib.suppress(_InProgress):
                return self._step_to(measurement.output, start, product)
        found, step = self._step_to(measurement.place, start, product)
        for source in measurement.matched:
            step = step * self.factors.get(source, jnp.float32(1))
        if measurement.at_most is not None:
            with contextlib.suppress(_InProgress):
                _, limit = self._step_to(measurement.at_most, start, product)
                step = jnp.minimum(step, limit)
        return found, step

    def _step_to(self, place: MeasuringPoint, start: int, product: Any) -> tuple[Any, Any]:
        """What is delivered at a place, and the factor on the weight that it asks for."""
        found = moment(self._arrived(place, start, product))
        return found, step_to(found, jnp.float32(place.goal))

    def _arrived(self, place: MeasuringPoint, start: int, product: Any) -> Any:
        return delivered(self.graph, place.way, start, place.end, product, self.value_of)

    def _reduced(self, excess: Excess, product: Any) -> Any:
        """A product of two signals, where it exceeds what it may have."""
        _, factor = self._step_to(excess.place, excess.product, product)
        factor = factor if excess.exact else jnp.minimum(factor, jnp.float32(1))
        self.seen.excess[excess.product] = factor
        return product if excess.shared else scaled(product, factor)
