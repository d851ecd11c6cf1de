"""Runs Keras models on fresh inputs and measures what they compute."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np


def array(value: Any) -> np.ndarray:
    """Values in float64."""
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")), np.float64)


def values(variable: Any) -> np.ndarray:
    """A copy of a variable's values."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def moment(value: Any) -> float:
    """Second moment E[x²]."""
    return float(np.mean(array(value) ** 2))


def rms(value: Any) -> float:
    """Root mean square."""
    return moment(value) ** 0.5


def moment_of_others(logits: Any, idx: np.ndarray) -> float:
    """Second moment of the logits of all tokens but the one that was looked up."""
    values = array(logits)
    own = np.arange(values.shape[-1]) == idx[..., None]
    return float(np.mean(values[~own] ** 2))


def rows(plan: Any) -> dict[str, Any]:
    """Rows of a plan by path."""
    return {row.path: row for row in plan.weights}


def reasons(plan: Any) -> dict[str, str]:
    """Names of the reasons why variables are left alone."""
    return {left.path: left.reason.name for left in plan.left_alone}


def assert_complete(plan: Any, model: Any) -> None:
    """Every variable has a row or is listed as left alone, once; a path's second as ``(2)``."""
    named = [row.path for row in plan.weights] + [left.path for left in plan.left_alone]
    assert len(set(named)) == len(named)
    paths = sorted(re.sub(r" \(\d+\)$", "", name) for name in named)
    assert paths == sorted(variable.path for variable in model.variables)


class Unchanged:
    """Fails where the block changes any variable of a model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = [(v, values(v)) for v in self.model.variables]

    def __exit__(self, *_: Any) -> None:
        for variable, before in self.before:
            np.testing.assert_array_equal(values(variable), before)
