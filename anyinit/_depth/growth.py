"""A second pass with a perturbed signal: how an error grows until a norm or the output.

Where the signal is first met by a weight, and again after everything that has taken the error off
(a normalization), the product is made larger by a little. The relative error that arrives at each
later weight, over the one put in, is its growth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

import numpy as np

from anyinit._classify.traits import Source
from anyinit._depth.slopes import Function, functions_of, nonlinearities
from anyinit._depth.stability import Stability, StabilityVerdict
from anyinit._propagate.propagate import Record, propagate
from anyinit._sites.events import Acts
from anyinit._sites.sites import Sites
from anyinit._sites.uses import Use
from anyinit._solve.solve import Solution
from anyinit._trace.trace import Model

# The error put in: logarithm of the factor on the second moment.
_ERROR = 0.02

# Growth below which an error has been taken off, and above which it is followed no further.
_GONE, _LARGEST = 3e-3, 1e4


def stability_of(
    model: Model, sites: Sites, solution: Solution, drawn: Mapping[Source, np.ndarray]
) -> Stability | None:
    """Follow an error through the settled network; ``None`` where it has no nonlinearity.

    Arguments:
        model: the traced model.
        sites: the sites of its weights.
        solution: the settled scales.
        drawn: samples of the sources that keep their values.
    """
    moments = solution.record.moments
    functions = functions_of(model)
    settled = [function for function in functions if function.nodes[0].last_step]
    kept = frozenset(function.value for function in settled)
    growth, record = _follow(model, sites, solution, drawn, kept)
    started = {value for value, grown in growth.items() if grown is None}
    depth = _depths(model, sites, functions, started)
    found = [(depth[value], grown) for value, grown in growth.items() if grown is not None]
    for value in model.outputs:
        if moments.get(value, 0.0) > 0 and record.moments.get(value, 0.0) > 0:
            grown = abs(math.log(record.moments[value] / moments[value])) / _ERROR
            found.append((depth[value], min(grown, _LARGEST)))
    ways = [
        (StabilityVerdict.of(grown, layers), grown, layers) for layers, grown in found if layers
    ]
    if not ways and not functions:
        return None
    layers, grown = _telling(ways)
    return Stability(grown, layers, nonlinearities(model, settled, record.samples, moments))


def _telling(ways: Sequence[tuple[StabilityVerdict, float, int]]) -> tuple[int, float]:
    """Depth and growth where errors grow most, or fade most."""
    order = list(StabilityVerdict)
    lasting = [way for way in ways if way[0] is not StabilityVerdict.CONTRACTIVE]
    if lasting:
        _, grown, layers = max(lasting, key=lambda way: (order.index(way[0]), way[1], way[2]))
        return layers, grown
    # Errors that fade do so most at the end of the longest way; without a way, a norm follows
    # every nonlinearity.
    _, grown, layers = max(ways, key=lambda way: (way[2], way[1]), default=(None, 0.0, 0))
    return layers, grown


def _follow(
    model: Model,
    sites: Sites,
    solution: Solution,
    drawn: Mapping[Source, np.ndarray],
    kept: Set[int],
) -> tuple[dict[int, float | None], Record]:
    """Growth of the error at the product of each use, ``None`` where it was put in."""
    growth: dict[int, float | None] = {}

    def ask(use: Use, entering: float, weight: float) -> float:
        before = solution.record.asked.get(use.value, (0.0, 0.0))[0]
        if not (before > 0 and entering > 0):
            return 1.0
        error = math.log(entering / before) / _ERROR
        if abs(error) < _GONE:
            growth[use.value] = None
            return math.exp(_ERROR / 2)
        growth[use.value] = min(abs(error), _LARGEST)
        # The factor that leaves no more of the error than is followed.
        return math.exp((math.copysign(growth[use.value] or 0.0, error) - error) * _ERROR / 2)

    record = propagate(
        model.graph,
        model.traits,
        model.signals,
        solution.sigma,
        drawn,
        {use.node: use for use in sites.uses.scaled},
        ask,
        frozenset(model.outputs),
        kept,
        solution.repeated,
        solution.pools,
    )
    return growth, record


def _depths(
    model: Model, sites: Sites, functions: Sequence[Function], started: Set[int]
) -> list[int]:
    """Nonlinear layers between each value and where the error was put in."""
    graph, traits = model.graph, model.traits
    bends = {(each.value, node.index) for each in functions for node in each.nodes}
    for site in sites.sites:
        if site.acts is Acts.PRODUCT:
            bends |= {(site.value, index) for index in graph.consumers[site.value]}
    depth = [0] * len(graph.shapes)
    for node in graph.nodes:
        reached = max((depth[v] + ((v, node.index) in bends) for v in node.inputs), default=0)
        for value in node.outputs:
            fresh = value in started or traits[value].normalizes is not None
            depth[value] = 0 if fresh else reached
    return depth
