"""Lists of tensors of one shape, in which loops keep what they read and write.

A list is an array with one more axis in front, or reserved until something is written to it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_tensorflow._operation import Lowering, NotStaticError, Operation, number, numbers


@dataclasses.dataclass(frozen=True)
class Reserved:
    """A list to which nothing has been written.

    Arguments:
        length: how many tensors it will hold.
        dtype: their dtype.
        shape: their shape; sizes that are not known are negative.
    """

    length: int
    dtype: Any
    shape: tuple[int, ...]

    def zeros(self, shape: tuple[int, ...] | None = None) -> Any:
        """The list as an array of zeros.

        Arguments:
            shape: the shape of its tensors, where it is known from elsewhere.
        """
        found = self.shape if shape is None else shape
        if any(size < 0 for size in found):
            raise NotStaticError("the shape of a list's tensors")
        return jnp.zeros((self.length, *found), self.dtype)


def _reserve(operation: Operation, shape: Any, length: Any) -> Reserved:
    dtype = jax.dtypes.canonicalize_dtype(operation.attribute("element_dtype").as_numpy_dtype)
    return Reserved(number(length), dtype, tuple(numbers(shape)))


def _read(operation: Operation, items: Any, index: Any, shape: Any) -> Any:
    items = items.zeros() if isinstance(items, Reserved) else items
    return lax.dynamic_index_in_dim(items, jnp.asarray(index), 0, keepdims=False)


def _write(operation: Operation, items: Any, index: Any, item: Any) -> Any:
    items = items.zeros(jnp.shape(item)) if isinstance(items, Reserved) else items
    if items.shape[0] == 1:
        return jnp.asarray(item)[None]
    return lax.dynamic_update_index_in_dim(items, jnp.asarray(item), jnp.asarray(index), 0)


def _stack(operation: Operation, items: Any, shape: Any) -> Any:
    return items.zeros() if isinstance(items, Reserved) else items


def _length(operation: Operation, items: Any) -> Any:
    length = items.length if isinstance(items, Reserved) else items.shape[0]
    return np.asarray(length, np.int32)


LOWERINGS: dict[str, Lowering] = {
    "TensorListFromTensor": lambda operation, items, shape: jnp.asarray(items),
    "TensorListGetItem": _read,
    "TensorListLength": _length,
    "TensorListReserve": _reserve,
    "TensorListSetItem": _write,
    "TensorListStack": _stack,
}
