"""One operation of a graph, as a lowering sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf

# Called with an Operation and its inputs: JAX values, and NumPy arrays for what is known.
Lowering = Callable[..., Any]


class NotStaticError(Exception):
    """A lowering needs a number that the graph computes from its inputs."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, with what its lowering may ask for.

    Arguments:
        raw: the operation of the graph.
        key: makes a fresh random key.
    """

    raw: tf.Operation
    key: Callable[[], jax.Array]

    def attribute(self, name: str) -> Any:
        """An attribute of the operation; text as ``str``."""
        value = self.raw.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that JAX gives the first result."""
        return dtype_of(self.raw.outputs[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result.

        Raises:
            NotStaticError: the graph does not know it.
        """
        found = shape_of(self.raw.outputs[0])
        if found is None:
            raise NotStaticError(f"the shape of {self.raw.name}")
        return found


def dtype_of(tensor: Any) -> np.dtype[Any]:
    """The dtype that JAX gives a tensor: 32-bit numbers in the place of 64-bit ones.

    Arguments:
        tensor: a tensor of the graph.
    """
    dtype: np.dtype[Any] = np.dtype(jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype))
    return dtype


def shape_of(tensor: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, ``None`` where the graph does not know all of it.

    Arguments:
        tensor: a tensor of the graph.
    """
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def numbers(value: Any) -> list[int]:
    """The integers of an input that has to be known: a shape, an axis, a permutation.

    >>> numbers(np.array([2, -1]))
    [2, -1]

    Arguments:
        value: an input of an operation.

    Raises:
        NotStaticError: it is not known.
    """
    if isinstance(value, jax.core.Tracer):
        raise NotStaticError(str(value))
    return [int(number) for number in np.ravel(value)]


def number(value: Any) -> int:
    """The one integer of an input that has to be known.

    Arguments:
        value: an input of an operation.
    """
    (found,) = numbers(value)
    return found
