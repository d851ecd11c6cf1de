"""What a lowering is: a small function that spells an operator in JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Called with a Result and the operator's own arguments, arrays in the place of tensors.
Lowering = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """What an operator returns, as torch has computed it, and what is needed to spell it.

    Arguments:
        outputs: shape and dtype of each result; ``None`` for those that are no tensor.
        key: makes a fresh random key.
    """

    outputs: tuple[jax.ShapeDtypeStruct | None, ...]
    key: Callable[[], jax.Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self._first.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the first result."""
        dtype: np.dtype[Any] = np.dtype(self._first.dtype)
        return dtype

    @property
    def _first(self) -> jax.ShapeDtypeStruct:
        return next(output for output in self.outputs if output is not None)


def abstract_value(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """A shape and dtype without numbers.

    Arguments:
        shape: the shape.
        dtype: the dtype.
    """
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def cast(operand: Any, dtype: Any) -> Any:
    """An operand in the dtype of the result; Python numbers stay as they are.

    Arguments:
        operand: an array or a number.
        dtype: the dtype wanted.
    """
    if isinstance(operand, (bool, int, float, complex)):
        if np.issubdtype(dtype, np.bool_):
            return np.asarray(bool(operand))
        if np.issubdtype(dtype, np.integer):
            # torch's largest 64-bit integers stand for "no limit" here.
            limits = np.iinfo(dtype)
            return np.asarray(min(max(int(operand.real), limits.min), limits.max), dtype)
        return np.asarray(operand, dtype)
    if operand.dtype == dtype:
        return operand
    if jnp.issubdtype(operand.dtype, np.complexfloating) and not jnp.issubdtype(
        dtype, np.complexfloating
    ):
        operand = jnp.real(operand)
    return jax.lax.convert_element_type(operand, dtype)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Arguments:
        axis: as torch takes it, negative from the back.
        rank: number of axes.
    """
    return axis % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Several axes counted from the front; ``None`` and an empty list mean all of them.

    Arguments:
        axes: as torch takes them.
        rank: number of axes.
    """
    if axes is None:
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else list(axes)
    return tuple(axis_of(axis, rank) for axis in listed) if listed and rank else tuple(range(rank))
