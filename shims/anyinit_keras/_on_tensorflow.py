"""The TensorFlow backend: a model as a graph of operators, each lowered to JAX by tf2jax."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import tensorflow as tf
import tf2jax

from anyinit._source import located
from anyinit_keras._traced import Run


def lowered(run: Run, variables: Sequence[Any], arrays: Sequence[Any]) -> Run:
    """What the model computes, as a function that JAX can trace.

    The variables are arguments of the graph, so none of their values is looked at.

    Arguments:
        run: computes the model on TensorFlow tensors.
        variables: its variables.
        arrays: shapes and dtypes of its inputs.
    """

    def forward(values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(run(values, inputs)) if tf.is_tensor(leaf)]

    # As Keras itself does, without AutoGraph.
    function = tf.function(forward, autograph=False)
    converted = tf2jax.convert_functional(function, _specs(variables), _specs(arrays))

    def replay(values: Sequence[Any], inputs: Sequence[Any]) -> Any:
        with (
            jax.numpy_dtype_promotion("standard"),
            warnings.catch_warnings(),
            located(""),
        ):
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            return converted(list(values), list(inputs))

    return replay


def _specs(arrays: Sequence[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tuple(array.shape), str(array.dtype)) for array in arrays]
