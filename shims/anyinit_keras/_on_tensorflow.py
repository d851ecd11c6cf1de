"""The TensorFlow backend: a model as a graph of operators, each lowered to JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import tensorflow as tf

from anyinit_keras._traced import Lowered, Run
from anyinit_tensorflow import replay


def lowered(run: Run, variables: Sequence[Any], arrays: Sequence[Any]) -> Lowered:
    """What the model computes, as a function that JAX can trace.

    The variables are arguments of the graph, so none of their values is looked at.

    Arguments:
        run: computes the model on TensorFlow tensors.
        variables: its variables.
        arrays: shapes and dtypes of its inputs.
    """

    def forward(values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        results = jax.tree.leaves(run(values, inputs))
        return [tf.identity(leaf) for leaf in results if isinstance(leaf, tf.Tensor)]

    # As Keras itself does, without AutoGraph.
    function = tf.function(forward, autograph=False)
    handles = [variable.value.handle for variable in variables]
    concrete = function.get_concrete_function(_specs(variables), _specs(arrays))

    def compute(values: Sequence[Any], inputs: Sequence[Any], key: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return replay(concrete, [*values, *inputs], key, handles)

    return compute


def _specs(arrays: Sequence[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tuple(array.shape), str(array.dtype)) for array in arrays]
