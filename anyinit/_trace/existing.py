"""Parameters that exist already: drawn or constant, read off their values.

A leaf is constant when all its entries are equal, and a vector also when it has but a few different
ones: the bias of fused gates is 1 for one gate and 0 for the others. Of a drawn leaf a few thousand
entries are looked at, never the whole: it may be sharded over many devices.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._propagate.signal import SAMPLES, from_array

# As many different numbers as a vector of constants may have.
_FEW = 4


def is_constant(leaf: Any) -> bool:
    """Whether an array is made of one number, or a vector of a few.

    >>> is_constant(jnp.zeros((2, 3))), is_constant(jnp.arange(3.0))
    (True, False)
    >>> is_constant(jnp.concatenate([jnp.zeros(16), jnp.ones(16)]))
    True

    Arguments:
        leaf: array of any shape and dtype.
    """
    part = np.asarray(_part(leaf))
    if part.size <= 1 or bool((part == part.flat[0]).all()):
        return leaf.size <= part.size or bool(jnp.all(leaf == part.flat[0]))
    return leaf.ndim == 1 and leaf.size <= SAMPLES and has_few_numbers(part)


def has_few_numbers(vector: np.ndarray) -> bool:
    """Whether a vector is made of so few different numbers that nobody has drawn them.

    >>> has_few_numbers(np.repeat([0.0, 1.0], 8)), has_few_numbers(np.arange(16.0))
    (True, False)

    Arguments:
        vector: array of one axis.
    """
    return len(np.unique(vector)) <= min(_FEW, vector.size // _FEW)


def array_of(leaf: Any) -> np.ndarray | None:
    """All numbers of a vector that is not too long; ``None`` for anything else.

    Arguments:
        leaf: array of any shape and dtype.
    """
    return np.asarray(leaf) if leaf.ndim == 1 and leaf.size <= SAMPLES else None


def samples_of(leaf: Any) -> np.ndarray:
    """Samples of an array's entries, as the analysis represents a signal.

    Arguments:
        leaf: array of any shape and a floating-point dtype.

    Returns:
        Array of ``SAMPLES`` numbers, or of shape ``()`` where all entries looked at are equal.
    """
    return from_array(np.asarray(_part(leaf)))


def _part(leaf: Any) -> Any:
    """At most ``SAMPLES`` entries, spread over all axes; the array itself where it is small."""
    if leaf.size <= SAMPLES:
        return leaf
    steps = []
    wanted = leaf.size / SAMPLES
    for size in leaf.shape:
        step = min(size, max(1, math.ceil(wanted)))
        steps.append(step)
        wanted /= step
    return jax.device_get(leaf[tuple(slice(None, None, step) for step in steps)])
