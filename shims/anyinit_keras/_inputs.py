"""What a model is called with: the caller's arguments, or the model's own symbolic inputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import keras

# What unknown dimensions are filled with: enough examples for a batch norm's statistics, and
# images that can be halved several times. Only shapes are followed, so none of it costs anything.
_BATCH = 32
_LENGTH = 16
_IMAGE = 96


@dataclasses.dataclass(frozen=True)
class Call:
    """Arguments of a model.

    Arguments:
        x: the first argument: arrays, in the structure that the model takes.
        further: the arguments passed by name.
    """

    x: Any
    further: Mapping[str, Any]


def is_array(leaf: Any) -> bool:
    """Whether an argument is an array (or its shape and dtype), not a static constant."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def call_of(model: keras.Layer, x: Any, further: Mapping[str, Any]) -> Call:
    """The arguments to analyse a model with; every array in them as its shape and dtype.

    ``training=True`` is added where the model's ``call`` takes it, as ``fit`` does.

    Arguments:
        model: the model.
        x: what the caller passed; ``None`` stands for the model's symbolic inputs.
        further: what the caller passed by name.

    Raises:
        TypeError: the model's ``call`` lacks an argument or has no such argument.
        ValueError: ``x`` is ``None`` and the model does not know its inputs.
    """
    if x is None:
        x = _symbolic_inputs(model)
    further = dict(further)
    signature = inspect.signature(model.call)
    if "training" in signature.parameters:
        further.setdefault("training", True)
    try:
        signature.bind(x, **{name: value for name, value in further.items() if name != "training"})
    except TypeError as error:
        raise TypeError(
            f"{type(model).__name__}.call{signature} cannot be called with these arguments: "
            f"{error}; nothing was changed. Pass its first argument as x and all others by name, "
            "as in anyinit.keras.init(model, x, mask=mask)."
        ) from error
    return Call(*jax.tree.map(_abstract, (x, further)))


def batch_of(model: keras.Layer, x: Any, further: Mapping[str, Any], call: Call) -> list[Any]:
    """The arrays that a model is measured on, in the order of the call's arrays.

    Arguments:
        model: the model.
        x: what the caller passed as its first argument.
        further: what the caller passed by name.
        call: the call made of it.

    Raises:
        TypeError: no batch was passed.
    """
    if x is None:
        raise TypeError(
            f"Measuring {type(model).__name__} takes a real batch, got none; nothing was changed. "
            "Pass it as anyinit.keras.init(model, x, mode='empirical'), or use mode='analytic', "
            "which takes the model's symbolic inputs."
        )
    shapes = [leaf for leaf in jax.tree.leaves((call.x, dict(call.further))) if is_array(leaf)]
    arrays = [leaf for leaf in jax.tree.leaves((x, dict(further))) if is_array(leaf)]
    return [
        array
        if isinstance(array, (jax.core.Tracer, jax.ShapeDtypeStruct))
        else keras.ops.convert_to_numpy(array).astype(shape.dtype)
        for array, shape in zip(arrays, shapes, strict=True)
    ]


def _symbolic_inputs(model: keras.Layer) -> Any:
    name = type(model).__name__
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError):
        pass
    state = "knows no input dtypes" if model.built else "is not built"
    raise ValueError(
        f"{name} {model.name!r} {state}, so there is no symbolic input to analyse it with; nothing "
        "was changed. Pass an input: an array, or jax.ShapeDtypeStruct(shape, dtype), in the "
        "structure that the model is called with."
    )


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, complex)) or not is_array(leaf):
        return leaf
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    # Python's and NumPy's 64-bit numbers become what Keras makes of them.
    narrow = {"float64": keras.config.floatx(), "int64": "int32", "uint64": "uint32"}
    return jax.ShapeDtypeStruct(_filled(leaf.shape), narrow.get(dtype, dtype))  # type: ignore[no-untyped-call]


def _filled(shape: Iterable[int | None]) -> tuple[int, ...]:
    """A shape without unknown dimensions."""
    sizes = list(shape)
    inner = _IMAGE if len(sizes) > 3 else _LENGTH
    return tuple(
        size if size is not None else (_BATCH if axis == 0 else inner)
        for axis, size in enumerate(sizes)
    )
