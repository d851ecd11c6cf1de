"""Keras layers of every kind: what a model computes decides, not what its layers are called."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import keras_models as models
import numpy as np
from keras_measure import Unchanged, assert_complete, moment, reasons, rms, rows, values

import anyinit.keras

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


# The gates of a Keras LSTM share one kernel and one bias, 1 for the forget gate: the analysis
# follows the sum as one, so what it expects of the other gates is off.
WIDE = {"lstm": (0.4, 1.4), "bidirectional": (0.4, 1.4)}

# An attention average keeps at most the scale of what it averages.
WITH_INPUT = {"attention", "grouped_attention"}


def seeds(make: Any, inputs: Any, **training: bool) -> float:
    """Second moment of the output after ``init``, averaged over seeds."""
    found = []
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        model = make()
        plan = anyinit.keras.init(model, inputs(0))
        assert_complete(plan, model)
        found.append(moment(model(inputs(seed + 1), **training)))
    return float(np.mean(found))


@pytest.mark.parametrize("name", models.PLAIN)
def test_second_moment_of_the_output(name: str) -> None:
    make, inputs = models.PLAIN[name]
    low, high = WIDE.get(name, (0.8, 1.3))
    assert low <= seeds(make, inputs, training=True) <= high


@pytest.mark.parametrize("make", [models.residual_mlp, models.ResidualMLP])
def test_twelve_residual_branches_without_a_norm(make: Any) -> None:
    found = []
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        model = make()
        plan = anyinit.keras.init(model, models.normal(0, 4, models.D))
        assert_complete(plan, model)
        found.append([moment(y) for y in model(models.normal(seed, 256, models.D))])
    logits, stream = np.mean(found, axis=0)
    assert 0.5 <= logits <= 2
    # Each of the 12 branches adds 1/12 to the 1 of the input.
    assert stream == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_dtype_policies(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = models.decoder()
    plan = anyinit.keras.init(model)
    assert_complete(plan, model)
    wanted = "float32" if policy.startswith("mixed") else policy
    assert {v.dtype for v in model.trainable_variables} == {wanted}
    assert 0.8 <= moment(model(models.tokens(1))) <= 1.25


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has it only where told to")
def test_double_precision_is_kept() -> None:
    keras.config.set_dtype_policy("float64")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])
    kernel = model.layers[0].kernel
    before = values(kernel)
    plan = anyinit.keras.init(model)
    ratio = values(kernel) / before
    assert rms(kernel) == pytest.approx(plan.weights[0].sigma, rel=1e-6)
    assert values(kernel).dtype == np.float64
    assert np.ptp(ratio) < 1e-12


def stack() -> Any:
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(32, activation="relu", name="first"),
            keras.layers.Dense(32, activation="relu", name="second"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(8, name="head"),
        ]
    )


def test_frozen_layers_stay_as_they_are() -> None:
    model = stack()
    model.layers[1].trainable = False
    before = values(model.layers[1].kernel)
    plan = anyinit.keras.init(model)
    assert_complete(plan, model)
    np.testing.assert_array_equal(before, values(model.layers[1].kernel))
    frozen = {path.split("/", 1)[1] for path, name in reasons(plan).items() if name == "FROZEN"}
    assert frozen >= {"second/kernel", "second/bias", "norm/moving_mean", "norm/moving_variance"}
    assert len(plan.weights) == 2


def test_a_trained_model_obeys_and_its_constants_stay() -> None:
    model = stack()
    model.layers[0].bias.assign(np.full(32, 0.5))
    model.layers[2].gamma.assign(np.linspace(0.5, 1.5, 32))
    model.layers[2].moving_mean.assign(np.linspace(-1, 1, 32))
    constants = [v for v in model.variables if len(v.shape) < 2]
    before = [values(v) for v in constants]
    model.layers[-1].kernel.assign(model.layers[-1].kernel * 100)
    anyinit.keras.init(model)
    for variable, kept in zip(constants, before, strict=True):
        np.testing.assert_array_equal(values(variable), kept)
    assert rms(model.layers[-1].kernel) < 1


def test_in_place_and_idempotent() -> None:
    model = models.decoder()
    anyinit.keras.init(model)
    before = [values(v) for v in model.variables]
    anyinit.keras.init(model)
    for variable, kept in zip(model.variables, before, strict=True):
        np.testing.assert_allclose(values(variable), kept, rtol=0.02, atol=1e-7)


def test_plan_changes_nothing() -> None:
    model = models.decoder()
    before = [values(v) for v in model.variables]
    plan = anyinit.keras.plan(model)
    for variable, kept in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(values(variable), kept)
    assert anyinit.Plan.from_json(plan.to_json()) == plan
    assert "table/embeddings" in str(plan)


def test_a_sequence_longer_than_a_loop_is_written_out() -> None:
    found = []
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((60, models.D))
        h = keras.layers.GRU(models.D, return_sequences=True)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(8)(h))
        anyinit.keras.init(model)
        found.append(moment(model(models.normal(seed, 64, 60, models.D))))
    assert 0.8 <= np.mean(found) <= 1.3


def test_the_random_state_is_the_users() -> None:
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dropout(0.5)(keras.layers.Dense(4)(inputs)))
    drawn = []
    for looks in (False, True):
        keras.utils.set_random_seed(1)
        if looks:
            with Unchanged(model):
                anyinit.keras.plan(model)
        own = np.asarray(keras.ops.convert_to_numpy(keras.random.normal((4,))))
        drawn.append([*own, np.random.normal(), random.random()])
    assert drawn[0] == drawn[1]


def test_training_is_passed_where_the_model_takes_it() -> None:
    model = stack()
    training = rows(anyinit.keras.plan(model))["sequential/head/kernel"].moment_in
    inference = rows(anyinit.keras.plan(model, training=False))["sequential/head/kernel"].moment_in
    # Dropout of one half doubles the second moment; the norm's averages are 0 and 1 as yet.
    assert training == pytest.approx(2, rel=0.05)
    assert inference != pytest.approx(training, rel=0.2)


def test_unbuilt_models_are_built_from_the_input() -> None:
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    plan = anyinit.keras.init(model, models.normal(0, 4, 32))
    assert_complete(plan, model)
    assert rms(model.layers[1].kernel) == pytest.approx(
        rows(plan)[model.layers[1].kernel.path].sigma
    )


def test_dict_inputs_and_shapes_alone() -> None:
    jax = pytest.importorskip("jax")
    one, other = keras.Input((8,), name="one"), keras.Input((4,), name="other")
    sum_ = keras.layers.Dense(16)(one) + keras.layers.Dense(16)(other)
    model = keras.Model({"one": one, "other": other}, keras.layers.ReLU()(sum_))
    shapes = {
        "one": jax.ShapeDtypeStruct((2, 8), "float32"),
        "other": jax.ShapeDtypeStruct((2, 4), "float32"),
    }
    given, default = anyinit.keras.plan(model, shapes), anyinit.keras.plan(model)
    assert given == default
    assert [row.target for row in given.weights] == [0.5, 0.5]


def test_only_and_skip() -> None:
    model = models.decoder()
    assert set(rows(anyinit.keras.plan(model, only="table/*"))) == {"table/embeddings"}
    assert "table/embeddings" not in rows(anyinit.keras.plan(model, skip="table/*"))


def test_layers_of_one_name_are_two_rows() -> None:
    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one = keras.layers.Dense(8, name="same", activation="relu")
            self.other = keras.layers.Dense(8, name="same")

        def call(self, x: Any) -> Any:
            return self.other(self.one(x))

    model = Twins()
    plan = anyinit.keras.init(model, models.normal(0, 4, 16))
    assert sorted(rows(plan)) == ["twins/same/kernel", "twins/same/kernel (2)"]
    assert rms(model.one.kernel) == pytest.approx(1 / 4, rel=0.01)


def test_rows_name_the_line_of_the_model_and_none_of_the_framework() -> None:
    class Classifier(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = keras.layers.Dense(64), keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            return self.head(keras.ops.relu(self.hidden(x)))

    x = np.zeros((4, 32), np.float32)
    model = Classifier()
    model(x)
    rows = anyinit.keras.plan(model, x).weights
    assert [row.where.partition(":")[0] for row in rows] == ["test_keras_layers.py"] * 2
    inputs = keras.Input((32,))
    functional = keras.Model(inputs, keras.layers.Dense(8)(keras.layers.Dense(64, "relu")(inputs)))
    # Its graph was made before; only JAX says where.
    lines = {row.where.partition(":")[0] for row in anyinit.keras.plan(functional).weights}
    assert lines <= {"", "test_keras_layers.py"}
