"""The values of variables as arrays that JAX takes, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from anyinit._apply.rescale import scale_to
from anyinit._plan.plan import Plan


def read(variable: keras.Variable) -> Any:
    """The array of a variable, not copied where the backend allows it.

    Arguments:
        variable: a variable of the JAX or the TensorFlow backend.
    """
    value = variable.value
    if not hasattr(value, "read_value"):
        return value
    # On the processor a TensorFlow tensor lends its memory to NumPy; a variable would be copied.
    return np.asarray(value.read_value()) if variable.ndim else np.asarray(value.numpy())


def abstract(variable: keras.Variable) -> jax.ShapeDtypeStruct:
    """Shape of a variable, and the dtype that JAX gives its values.

    Arguments:
        variable: a variable of any backend.
    """
    dtype = jax.dtypes.canonicalize_dtype(variable.dtype)
    return jax.ShapeDtypeStruct(tuple(variable.shape), dtype)  # type: ignore[no-untyped-call]


def where_values_are() -> contextlib.AbstractContextManager[Any]:
    """JAX runs what is inside where the variables are: another framework's on the processor."""
    if keras.backend.backend() == "jax":
        return contextlib.nullcontext()
    return jax.default_device(jax.devices("cpu")[0])


def rescale(named: Mapping[str, keras.Variable], plan: Plan) -> None:
    """Give every planned variable the standard deviation that the plan asks for.

    Arguments:
        named: the variables of the planned model by name.
        plan: its plan.
    """
    scaled = []
    for row in plan.weights:
        variable = named[row.path]
        wide = variable.dtype == "float64" and keras.backend.backend() != "jax"
        with jax.enable_x64() if wide else contextlib.nullcontext():
            scaled.append((variable, scale_to(read(variable), row.sigma, row.layer_axes)))
    for variable, value in scaled:
        variable.assign(value)
