"""Bad input: an error that names the thing and says what to do; nothing is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import keras_models as models
from keras_measure import Unchanged

import anyinit.keras

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture
def model() -> Iterator[Any]:
    made = models.residual_mlp(1)
    with Unchanged(made):
        yield made


class Sum(keras.Model):
    """Needs a second argument."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, other: Any) -> Any:
        return self.dense(x) + other


def test_an_unbuilt_model_without_x() -> None:
    with pytest.raises(ValueError, match=r"Subclassed 'subclassed' is not built.*Pass an input"):
        anyinit.keras.init(models.Subclassed(64))
    with pytest.raises(ValueError, match=r"Sequential 'sequential' is not built"):
        anyinit.keras.init(keras.Sequential([keras.layers.Dense(3)]))


def test_a_built_model_that_does_not_know_its_inputs() -> None:
    model = models.Subclassed(64)
    model(models.tokens(0))
    with Unchanged(model), pytest.raises(ValueError, match=r"knows no input dtypes.*Pass an input"):
        anyinit.keras.init(model)


@pytest.mark.parametrize("built", [False, True])
def test_a_missing_argument(built: bool) -> None:
    model, x = Sum(), models.normal(0, 2, 3)
    if built:
        model(x, x)
    with Unchanged(model), pytest.raises(TypeError, match=r"Sum\.call\(x.*'other'.*by name"):
        anyinit.keras.init(model, x)
    assert anyinit.keras.init(model, x, other=x).weights


def test_an_argument_that_the_model_does_not_have() -> None:
    x = models.normal(0, 2, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        anyinit.keras.init(Sum(), x, other=x, speed=3)


@pytest.mark.parametrize("shape", [(2, 3, 32), (2, 31)])
def test_an_input_of_the_wrong_shape(model: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"incompatible with the layer: expected shape"):
        anyinit.keras.init(model, models.normal(0, *shape))


def test_an_input_without_elements(model: Any) -> None:
    with pytest.raises(ValueError, match="no elements"):
        anyinit.keras.init(model, models.normal(0, 0, 32))


@pytest.mark.parametrize(
    ("thing", "text"),
    [(keras.Model, "Model itself, a class"), (3, "got int"), (None, "NoneType")],
)
def test_what_is_no_model(thing: Any, text: str) -> None:
    with pytest.raises(TypeError, match=rf"Expected an instance of keras\.Model.*{text}"):
        anyinit.keras.init(thing)


def test_a_torch_module_that_is_no_keras_model() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match=r"got torch\.nn\.modules\.linear\.Linear"):
        anyinit.keras.init(torch.nn.Linear(3, 3))


def test_values_of_another_backend(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.ops, "is_tensor", lambda value: False)
    with pytest.raises(ValueError, match=r"up_0/kernel holds a .*one backend"):
        anyinit.keras.init(model)


def test_a_backend_that_is_not_supported() -> None:
    code = (
        "import keras, anyinit.keras\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])\n"
        "try:\n    anyinit.keras.plan(model)\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "numpy", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert "backend of this process is 'numpy'" in done.stdout, done.stderr


@pytest.mark.parametrize("mode", ["Empirical", "exact", None])
def test_unknown_modes(model: Any, mode: Any) -> None:
    with pytest.raises(ValueError, match="Unknown mode"):
        anyinit.keras.init(model, mode=mode)


@pytest.mark.parametrize("moment", [0, -1.0, float("nan"), "1"])
def test_impossible_moments(model: Any, moment: Any) -> None:
    with pytest.raises(ValueError, match="no second moment"):
        anyinit.keras.init(model, input_moment=moment)


@pytest.mark.parametrize("option", ["only", "skip"])
def test_patterns_without_a_match(model: Any, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}='blocks/*.*' matches no drawn weight"):
        anyinit.keras.init(model, **{option: "blocks/*"})


def test_nothing_to_scale(model: Any) -> None:
    norm = keras.Sequential([keras.Input((3,)), keras.layers.LayerNormalization()])
    with pytest.raises(ValueError, match="has no drawn weight"):
        anyinit.keras.init(norm)
    model.trainable = False
    with pytest.raises(ValueError, match=r"Functional 'functional.*no drawn weight"):
        anyinit.keras.init(model)
