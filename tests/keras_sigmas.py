"""Plans the tests' Keras models under the backend of the process; prints σ and m as JSON."""

from __future__ import annotations

import json
from typing import Any

import keras
import keras_models as models

import anyinit.keras

# Moments of gelu in a row, each from 4,096 samples seeded by its place in the graph: the
# two graphs differ in their places, so these agree to some 2% only.
SAMPLED = {"residual"}

PLAIN = "attention gru bidirectional einsum separable two_inputs decoder".split()


def plans() -> dict[str, Any]:
    """A plan a model, from the models' own symbolic inputs."""
    makers = {name: models.PLAIN[name][0] for name in PLAIN}
    for spelling in ("number_left", "lambda"):
        factor = models.FACTORS[spelling]
        makers[f"tied {spelling}"] = lambda factor=factor: models.tied(64, factor)
    makers["tied by a custom layer"] = lambda: models.custom_head(64)
    makers["soft capped"] = lambda: models.tied(64, logit_soft_cap=30.0)
    makers["untied"] = lambda: models.tied(64, models.FACTORS["division"], tie_weights=False)
    makers["residual"] = lambda: models.residual_mlp(4)
    found = {}
    for name, make in makers.items():
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        found[name] = anyinit.keras.plan(make())
    return found


def sigmas() -> dict[str, dict[str, tuple[float, float]]]:
    """σ and m of every planned variable of every model."""
    return {
        name: {row.path: (row.sigma, row.m) for row in plan.weights}
        for name, plan in plans().items()
    }


if __name__ == "__main__":
    print(json.dumps(sigmas()))
