"""The JAX backend: JAX traces what a model computes as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyinit_keras._traced import Lowered, Run


def as_it_is(run: Run, variables: Sequence[Any], arrays: Sequence[Any]) -> Lowered:
    """What the model computes, for JAX to trace.

    Arguments:
        run: computes the model on JAX arrays.
        variables: its variables.
        arrays: shapes and dtypes of its inputs.
    """
    return lambda values, inputs, key: run(values, inputs)
