"""What is refused before anything is traced or changed."""

from __future__ import annotations

from typing import Any

import keras

BACKENDS = ("jax", "torch", "tensorflow")


def check_model(model: Any) -> None:
    """Refuse what is no Keras 3 model, and backends that are not supported.

    Arguments:
        model: what the caller passed as the model.
    """
    if not isinstance(model, keras.Layer):
        kind = model if isinstance(model, type) else type(model)
        raise TypeError(
            f"Expected an instance of keras.Model or keras.Layer (Keras 3), got "
            f"{kind.__module__}.{kind.__name__}"
            + (" itself, a class: create an instance first." if isinstance(model, type) else ".")
        )
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise ValueError(
            f"The Keras backend of this process is {backend!r}: got it from KERAS_BACKEND or "
            f"keras.json, expected one of {', '.join(BACKENDS)}. Set KERAS_BACKEND=jax, "
            "initialize there, and carry the weights over with save_weights and load_weights."
        )


def check_calls(model: keras.Layer) -> None:
    """Refuse layers whose ``call`` is a ``tf.function``: it keeps the graph of its first call.

    Arguments:
        model: the model, built or not.
    """
    for layer in model._flatten_layers():
        if hasattr(layer.call, "get_concrete_function"):
            name = type(layer).__name__
            raise ValueError(
                f"{name}.call is a tf.function, got one in {layer.name!r}: it keeps the graph of "
                "its first call, with what the variables were then, and gives that back whatever "
                "Keras puts in their place; nothing was changed. Take the decorator off: "
                "Keras makes a function of the whole model by itself in fit, and "
                "tf.function(model) is one."
            )


def check_values(named: dict[str, keras.Variable]) -> None:
    """Refuse variables whose values are not those of this process's backend.

    Arguments:
        named: the variables of a built model.
    """
    backend = keras.backend.backend()
    for name, variable in named.items():
        if not keras.ops.is_tensor(variable.value):
            kind = type(variable.value)
            raise ValueError(
                f"{name} holds a {kind.__module__}.{kind.__name__}, but the Keras backend of this "
                f"process is {backend!r}; nothing was changed. Make the model in a process of one "
                "backend."
            )


def check_drawn(model: keras.Layer, count: int, drawn: int) -> None:
    """Refuse a model in which there is nothing to scale.

    Arguments:
        model: the model.
        count: number of its variables.
        drawn: number of those that are drawn.
    """
    if not drawn:
        raise ValueError(
            f"{type(model).__name__} {model.name!r} has no drawn weight: got {count} variables, "
            "all constant or frozen, expected at least one with different entries. There is "
            "nothing to scale."
        )
