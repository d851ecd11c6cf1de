"""What is refused before anything is traced or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from anyinit._arguments import not_a_model
from anyinit._plan.plan import Plan

BACKENDS = ("jax", "torch", "tensorflow")


def check_model(model: Any) -> None:
    """Refuse what is no Keras 3 model, and backends that are not supported.

    Arguments:
        model: what the caller passed as the model.
    """
    if not isinstance(model, keras.Layer):
        expected = "an instance of keras.Model or keras.Layer (Keras 3)"
        raise not_a_model("keras", expected, model)
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


def check_plan(model: keras.Layer, plan: Any, named: Mapping[str, keras.Variable]) -> None:
    """Refuse a plan that is none, or that belongs to another model.

    Arguments:
        model: the model, built.
        plan: what the caller passed as its plan.
        named: its variables by name.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"Expected the model's anyinit.Plan, got {type(plan).__name__}: pass what "
            "anyinit.keras.init(model) or anyinit.keras.plan(model) returned."
        )
    faults = [f"planned, but not in the model: {path}" for path in plan.known_names - set(named)]
    weights = {name for name, v in named.items() if v.trainable}
    faults += [f"in the model, but not in the plan: {name}" for name in weights - plan.known_names]
    faults += [
        f"shape differs: {row.path} is {tuple(named[row.path].shape)}, planned as {row.shape}"
        for row in plan.weights
        if row.path in named and tuple(named[row.path].shape) != row.shape
    ]
    if faults:
        raise ValueError(
            f"this plan does not belong to the model {model.name!r}.\n  "
            + "\n  ".join(sorted(faults)[:5])
            + "\nPlan the model itself: anyinit.keras.plan(model)."
        )
