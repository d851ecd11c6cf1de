"""The optimizer: two rates, kept by training, by saved and loaded models, and by clones."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import keras_models as models
import numpy as np

import anyinit.keras

D = 64
RATIO = D**0.5

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def model_and_plan() -> tuple[Any, Any]:
    idx = keras.Input((models.LENGTH,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(models.VOCAB, D, name="table")
    h = keras.layers.LayerNormalization(name="norm")(table(idx))
    h = keras.layers.Add()([h, keras.layers.Dense(D, name="dense")(h)])
    h = keras.layers.LayerNormalization(name="last_norm")(h)
    model = keras.Model(idx, table(h, reverse=True) * D**-0.5)
    return model, anyinit.keras.init(model)


def compiled(learning_rate: Any = 1e-3, **options: Any) -> Any:
    model, plan = model_and_plan()
    made = anyinit.keras.optimizer(
        model, plan, keras.optimizers.AdamW, learning_rate=learning_rate, **options
    )
    model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model: Any, steps: int = 3, **options: Any) -> Any:
    idx = models.tokens(0, batch=4 * steps)
    return model.fit(idx, idx, batch_size=4, verbose=0, **options)


def inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def rates(optimizer: Any) -> list[float]:
    return [float(part.learning_rate) for part in inner(optimizer).optimizers]


def variables(optimizer: Any) -> list[list[str]]:
    parts = inner(optimizer).optimizers
    return [[variable.path for variable in part._trainable_variables] for part in parts]


REST = [
    "norm/gamma norm/beta dense/kernel dense/bias last_norm/gamma last_norm/beta".split(),
]


def check(optimizer: Any) -> None:
    """Two optimizers: the table alone, at √d times the rate, and all else."""
    table, rest = rates(optimizer)
    assert table / rest == pytest.approx(RATIO, rel=1e-3)
    assert variables(optimizer) == [["table/embeddings"], *REST]


def test_two_optimizers_and_three_steps() -> None:
    model = compiled(weight_decay=0.1)
    before = [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables]
    fit(model)
    check(model.optimizer)
    after = [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables]
    moved = {
        v.path: np.abs(new - old).max()
        for v, new, old in zip(model.trainable_variables, after, before, strict=True)
    }
    assert moved["table/embeddings"] / moved["dense/kernel"] == pytest.approx(RATIO, rel=0.3)


def test_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    model = compiled()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    check(loaded.optimizer)
    assert [int(part.iterations) for part in loaded.optimizer.optimizers] == [3, 3]
    fit(model, 1)
    fit(loaded, 1)
    for one, other in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(one.value),
            keras.ops.convert_to_numpy(other.value),
            rtol=1e-4,
            atol=1e-6,
        )


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(models.Subclassed):
    """With a configuration."""

    def __init__(self, d: int, **options: Any) -> None:
        super().__init__(d)

    def get_config(self) -> dict[str, Any]:
        return {"d": self.d}


def test_subclassed_models_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    model = Subclassed(D)
    made = anyinit.keras.optimizer(model, anyinit.keras.init(model, models.tokens(0)))
    model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model)
    assert variables(made)[0] == ["subclassed/table/embeddings"]
    model.save(tmp_path / "model.keras")
    # As in a new process: Keras leaves the model's own name out of the paths of what it loads.
    keras.backend.clear_session()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert variables(loaded.optimizer)[0] == ["table/embeddings"]
    assert rates(loaded.optimizer) == pytest.approx(rates(made))
    assert [int(part.iterations) for part in loaded.optimizer.optimizers] == [3, 3]


def test_sequential_models_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="relu", name="first"),
            keras.layers.Dense(8, name="head"),
            keras.layers.Rescaling(0.25),
        ]
    )
    made = anyinit.keras.optimizer(model, anyinit.keras.init(model, models.normal(0, 4, 12)))
    model.compile(made, "mse")
    model.fit(models.normal(0, 4, 12), np.zeros((4, 8)), verbose=0)
    model.save(tmp_path / "model.keras")
    keras.backend.clear_session()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [len(paths) for paths in variables(loaded.optimizer)] == [1, 3]
    assert rates(loaded.optimizer) == pytest.approx([4e-3, 1e-3])


def test_cloned() -> None:
    model = compiled()
    clone = keras.models.clone_model(model)
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    clone.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(clone)
    check(clone.optimizer)


def test_schedules_keep_the_ratio(tmp_path: pathlib.Path) -> None:
    model = compiled(keras.optimizers.schedules.ExponentialDecay(1e-3, 3, 0.5))
    fit(model)
    check(model.optimizer)
    assert rates(model.optimizer)[1] == pytest.approx(5e-4)
    model.save(tmp_path / "model.keras")
    check(keras.saving.load_model(tmp_path / "model.keras").optimizer)


def test_several_weights_of_one_rate_stay_one_optimizer(tmp_path: pathlib.Path) -> None:
    one, other = keras.Input((D,)), keras.Input((D,))
    # The mark is no part of a pattern; TensorFlow allows no plus in a name.
    mark = "." if keras.backend.backend() == "tensorflow" else "+"
    heads = [keras.layers.Dense(10, name=f"head{mark}{number}") for number in range(2)]
    outputs = [head(x) * 0.25 for head, x in zip(heads, (one, other), strict=True)]
    model = keras.Model([one, other], outputs)
    made = anyinit.keras.optimizer(model, anyinit.keras.init(model), learning_rate=1e-3)
    model.compile(made, ["mse", "mse"])
    x = [models.normal(0, 4, D), models.normal(1, 4, D)]
    y = [np.zeros((4, 10)), np.zeros((4, 10))]
    model.fit(x, y, verbose=0)
    assert variables(made) == [
        [f"head{mark}{number}/{part}" for number in range(2)] for part in ("kernel", "bias")
    ]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert variables(loaded.optimizer) == variables(made)
    assert rates(loaded.optimizer) == pytest.approx([4e-3, 1e-3])


def test_loss_scaling_of_float16() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled()
        fit(model)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    check(model.optimizer)


def test_lora() -> None:
    model, _ = model_and_plan()
    model.get_layer("dense").enable_lora(2)
    plan = anyinit.keras.init(model)
    made = anyinit.keras.optimizer(model, plan, keras.optimizers.Adam, learning_rate=1e-3)
    model.compile(made, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model)
    table, rest = rates(made)
    assert table / rest == pytest.approx(RATIO, rel=1e-3)
    assert variables(made)[0] == ["table/embeddings"]
    assert {"dense/lora_kernel_a", "dense/lora_kernel_b"} <= set(variables(made)[1])
    assert "dense/kernel" not in variables(made)[1]


def test_reduce_lr_on_plateau_keeps_the_ratio() -> None:
    model = compiled()
    callback = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=100.0)
    fit(model, epochs=3, callbacks=[callback])
    check(model.optimizer)
    assert rates(model.optimizer)[1] == pytest.approx(2.5e-4)


def test_learning_rate_scheduler_sets_each_rate() -> None:
    model = compiled()
    fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)])
    check(model.optimizer)
    assert rates(model.optimizer)[1] == pytest.approx(5e-4)
    # A function that returns a number undoes the ratio, as the docstring says.
    fit(model, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])
    assert rates(model.optimizer) == pytest.approx([0.1, 0.1])


def test_variables_of_one_path_that_need_two_rates_are_refused() -> None:
    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one = keras.layers.Dense(8, name="same")
            self.other = keras.layers.Dense(8, name="same")

        def call(self, x: Any) -> Any:
            return self.other(keras.ops.relu(self.one(x))) * 0.25

    model = Twins()
    plan = anyinit.keras.init(model, models.normal(0, 4, 16))
    with pytest.raises(ValueError, match=r"Two variables have the path twins/same/kernel.*names"):
        anyinit.keras.optimizer(model, plan)


def test_a_plan_of_another_model_is_refused() -> None:
    _, plan = model_and_plan()
    with pytest.raises(ValueError, match="plan does not belong to the model"):
        anyinit.keras.optimizer(models.residual_mlp(1), plan)
    with pytest.raises(ValueError, match=r"shape differs: table/embeddings"):
        anyinit.keras.optimizer(models.tied(32), anyinit.keras.plan(models.tied(64)))


def test_clipping_over_several_rates_is_refused() -> None:
    model, plan = model_and_plan()
    with pytest.raises(ValueError, match="global_clipnorm cannot be split"):
        anyinit.keras.optimizer(model, plan, global_clipnorm=1.0)
    anyinit.keras.optimizer(model, plan, clipnorm=1.0)


@pytest.mark.parametrize("rate", [-1.0, "fast", None, True, lambda: 1.0])
def test_rates_that_are_none(rate: Any) -> None:
    model, plan = model_and_plan()
    with pytest.raises(ValueError, match="is no learning rate"):
        anyinit.keras.optimizer(model, plan, learning_rate=rate)
