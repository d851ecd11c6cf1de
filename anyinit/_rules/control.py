"""Branches, random numbers and integers drawn from them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._classify.traits import Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import mixture, uniform_atom


def _mix(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """One of several branches, chosen by an unknown predicate: equal shares."""
    return [mixture(list(numbers), [1.0] * len(numbers), *node.outputs)]


def _random(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Keys are opaque; random bits are uniform over their range."""
    results = []
    for value in node.outputs:
        dtype = graph.dtypes[value]
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            results.append(np.asarray(0))
            continue
        if jnp.issubdtype(dtype, np.floating):
            results.append(np.array(uniform_atom(value)))
            continue
        span = float(np.iinfo(dtype).max) + 1.0
        results.append((uniform_atom(value) * span).astype(dtype))
    return results


RULES = {"mix": _mix, **dict.fromkeys(primitives.RANDOM, _random)}
