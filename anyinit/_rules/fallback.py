"""A primitive without a rule is evaluated on small arrays of the right shapes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._graph import primitives
from anyinit._graph.equation import run_equation
from anyinit._graph.graph import Graph, Node
from anyinit._propagate.signal import SAMPLES, moment, normal_atom, permutation, places, spread

# The largest array that is made to evaluate a primitive that has no rule.
_LARGEST = 1 << 20


# What these return depends on the whole matrix, of which samples know nothing.
_STRUCTURED = frozenset(
    """custom_linear_solve lu lu_pivots_to_permutation triangular_solve cholesky eigh eig svd schur
    hessenberg tridiagonal tridiagonal_solve""".split()
)


def evaluate_equation(
    graph: Graph, node: Node, numbers: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Samples of the outputs of a primitive that no family knows, or ``None``.

    An elementwise primitive acts on the samples themselves. Any other is run on arrays of its
    own shapes filled with draws, where they are small enough. ``None`` when neither is possible.
    """
    equation = node.equation
    elementwise = node.primitive in primitives.ELEMENTWISE
    sizes = [graph.size(value) for value in (*node.inputs, *node.outputs)]
    if equation is None or node.primitive in _STRUCTURED:
        return None
    if not elementwise and max(sizes) > _LARGEST:
        return None
    arrays = [
        spread(samples) if elementwise else _array(graph, value, samples, position)
        for position, (value, samples) in enumerate(zip(node.inputs, numbers, strict=True))
    ]
    arrays = [
        array if _is_key(graph, value) else array.astype(graph.dtypes[value])
        for value, array in zip(node.inputs, arrays, strict=True)
    ]
    try:
        results = run_equation(equation, arrays)
    except Exception:
        # Whatever an unknown primitive raises on made-up numbers means one thing here:
        # it cannot be evaluated. The caller reports it by name.
        return None
    if any(not np.all(np.isfinite(r)) for r in results if r.dtype.kind == "f"):
        return None
    return [_samples(result) for result in results]


def keep_moment(graph: Graph, node: Node, numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Fresh variables with the largest second moment that enters."""
    scale = max((moment(n) for n in numbers if n.dtype.kind == "f"), default=1.0) ** 0.5
    return [
        scale * normal_atom(value)
        if jnp.issubdtype(graph.dtypes[value], np.inexact)
        else np.asarray(1)
        for value in node.outputs
    ]


def _is_key(graph: Graph, value: int) -> bool:
    return bool(jnp.issubdtype(graph.dtypes[value], jax.dtypes.extended))


def _array(graph: Graph, value: int, samples: np.ndarray, position: int) -> np.ndarray:
    """An array of the value's own shape, filled with draws of its samples."""
    shape = graph.shapes[value]
    padded = _padded(graph, value, samples, position)
    if padded is not None:
        return padded
    if samples.ndim == 0:
        return np.broadcast_to(samples, shape)
    size = int(np.prod(shape, dtype=np.int64))
    return samples[np.resize(permutation(position, value), size)].reshape(shape)


def _samples(array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    flat = flat if flat.dtype.kind in "iubc" else flat.astype(np.float64)
    if flat.size and (flat == flat[0]).all():
        return flat[0:1].reshape(())
    if flat.size in (0, SAMPLES):
        return flat
    return flat[places(array.shape)]


def _padded(graph: Graph, value: int, samples: np.ndarray, position: int) -> np.ndarray | None:
    """The array of a signal that has been padded: a Fourier transform sees its zeros."""
    if graph.producers[value] < 0:
        return None
    node = graph.nodes[graph.producers[value]]
    fill = graph.literals.get(graph.before_layout(node.inputs[-1]))
    if node.primitive != "pad" or fill is None:
        return None
    config = node.params["padding_config"]
    if any(min(widths) < 0 for widths in config):
        return None
    array = np.full(graph.shapes[value], fill, samples.dtype)
    inside = (
        slice(low, size - high, between + 1)
        for (low, high, between), size in zip(config, array.shape, strict=True)
    )
    array[tuple(inside)] = _array(graph, node.inputs[0], samples, position)
    return array
