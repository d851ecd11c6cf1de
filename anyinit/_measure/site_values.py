"""What a model computes at its sites, as a function of its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyinit._measure.measuring_pass import BatchPass
from anyinit._measure.places import Places
from anyinit._plan.analysis import Analysis
from anyinit._plan.watched import Place, watched


@dataclasses.dataclass(frozen=True)
class SiteValues:
    """The sites of a model and what it computes there.

    Arguments:
        names: the weights of each site and what acts there, in the order of computation, and the
            model's outputs.
        of: the arrays at the sites, from the model's variables.
    """

    names: tuple[str, ...]
    of: Callable[[Any], list[jax.Array]]


def named_sites(analysis: Analysis) -> dict[str, int]:
    """The value of each site and output by a name.

    Arguments:
        analysis: the analysis of the model.
    """
    found: dict[str, int] = {}
    outputs = analysis.model.outputs
    for value, places in watched(analysis).items():
        if value in outputs:
            number = f"[{outputs.index(value)}]" if len(outputs) > 1 else ""
            found[f"output{number}"] = value
            continue
        for place in places:
            if place.place is Place.SITE:
                again = f" ({place.number + 1})" if place.number else ""
                found.setdefault(f"{place.path}, {place.site}{again}", value)
    return found


def values_at(
    analysis: Analysis, sites: Sequence[int], leaves: Sequence[Any], arrays: Sequence[Any]
) -> list[jax.Array]:
    """The arrays at sites, from those of the parameters and of the graph's other inputs.

    Arguments:
        analysis: the analysis of the model.
        sites: values of the graph.
        leaves: an array for each parameter.
        arrays: an array for each further input of the graph.
    """
    graph = analysis.model.graph
    known: dict[int, Any] = {
        value: jnp.asarray(array, graph.dtypes[value]) for value, array in graph.literals.items()
    }
    known.update(graph.keys)
    known.update(zip(graph.inputs, [*leaves, *arrays], strict=True))
    walk = BatchPass(graph, analysis.model.traits, Places(), known, {})
    walk.run()
    return [walk.values[value] for value in sites]
