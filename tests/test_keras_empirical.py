"""Measuring Keras models: init with mode="empirical", and measure; on either backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="Keras is not installed")

from keras import layers
from keras_measure import moment, values

import anyinit.keras
from anyinit import UnhealthyError

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning",
)

WIDTH, VOCAB = 128, 500


def batch(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, VOCAB, (8, 24)).astype("int32")


def network() -> Any:
    """A residual network with batch norm and dropout, its logits times one over their input."""
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(VOCAB, WIDTH, name="table")(inputs)
    h = layers.BatchNormalization(name="norm")(x)
    h = layers.Dense(2 * WIDTH, activation="relu", name="up")(h)
    h = layers.Dropout(0.2, name="dropout")(layers.Dense(WIDTH, name="down")(h))
    x = layers.Add()([x, h])
    z = layers.Dense(VOCAB, use_bias=False, name="head")(layers.LayerNormalization()(x))
    return keras.Model(inputs, z * (3 / keras.ops.std(x)))


def test_factor_computed_from_the_signal() -> None:
    keras.utils.set_random_seed(0)
    model = network()
    kept = {v.path: values(v) for v in model.non_trainable_variables}
    plan = anyinit.keras.init(model, batch(0), mode="empirical")
    for variable in model.non_trainable_variables:
        assert np.array_equal(kept[variable.path], values(variable)), variable.path
    assert "measured on a batch" in str(plan)
    assert moment(model(batch(0), training=True)) == pytest.approx(1, abs=0.05)
    anyinit.keras.measure(model, batch(1), plan=plan).assert_healthy(tolerance=0.3)
    sigmas = {row.path: row.sigma for row in plan.weights}
    again = anyinit.keras.init(model, batch(0), mode="empirical")
    for row in again.weights:
        # On the torch backend dropout draws anew, from a key that is fixed.
        assert row.sigma == pytest.approx(sigmas[row.path], rel=1e-3)


def test_measure_of_a_model_as_keras_draws_it() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(WIDTH, "relu"), layers.Dense(1024), layers.Dense(32)]
    )
    x = np.random.default_rng(0).normal(size=(64, WIDTH)).astype("float32")
    with pytest.raises(UnhealthyError, match="smaller than predicted"):
        anyinit.keras.measure(model, x).assert_healthy()
    plan = anyinit.keras.init(model, x)
    anyinit.keras.measure(model, x, plan=plan).assert_healthy()


def test_refused_batches() -> None:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(32)])
    before = values(model.layers[0].kernel)
    with pytest.raises(TypeError, match="takes a real batch, got none; nothing was changed"):
        anyinit.keras.init(model, mode="empirical")
    with pytest.raises(ValueError, match="All entries of the batch are equal"):
        anyinit.keras.init(model, np.zeros((8, WIDTH), "float32"), mode="empirical")
    x = np.random.default_rng(0).normal(size=(8, WIDTH)).astype("float32")
    x[0, 0] = np.nan
    with pytest.raises(ValueError, match="holds NaN"):
        anyinit.keras.init(model, x, mode="empirical")
    assert np.array_equal(before, values(model.layers[0].kernel))
