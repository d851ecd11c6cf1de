"""Parameters that exist already: drawn or constant, read off their values.

A leaf is constant when all its entries are equal. Of a drawn one a few thousand entries are
looked at, never the whole: it may be sharded over many devices.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._signal import SAMPLES, from_array


def is_constant(leaf: Any) -> bool:
    """Whether all entries of an array are equal.

    >>> is_constant(jnp.zeros((2, 3))), is_constant(jnp.arange(3.0))
    (True, False)

    Arguments:
        leaf: array of any shape and dtype.
    """
    part = np.asarray(_part(leaf))
    if part.size <= 1 or bool((part == part.flat[0]).all()):
        return leaf.size <= part.size or bool(jnp.all(leaf == part.flat[0]))
    return False


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
