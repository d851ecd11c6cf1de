"""Builds a model that has no variables yet, as its first call would."""

from __future__ import annotations

import jax
import keras

from anyinit_keras._inputs import Call, is_array


def build(model: keras.Layer, call: Call) -> None:
    """Create the variables of an unbuilt model; a built one is left alone.

    The model is called on symbolic tensors: nothing is computed.

    Arguments:
        model: the model.
        call: the arguments to call it with.
    """
    if model.built:
        return
    x, further = jax.tree.map(
        lambda leaf: keras.KerasTensor(leaf.shape, str(leaf.dtype)) if is_array(leaf) else leaf,
        (call.x, dict(call.further)),
    )
    model(x, **further)
