"""One plan on every backend: σ of every variable agrees between JAX, torch and TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import keras_sigmas

HERE = pathlib.Path(__file__).parent

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

Sigmas = dict[str, dict[str, tuple[float, float]]]


BACKEND = keras.backend.backend()
OTHERS = [name for name in ("jax", "torch", "tensorflow") if name != BACKEND]


def elsewhere(backend: str, *arguments: str) -> str:
    """What a program prints in a process of another backend."""
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=OTHERS)
def both(request: pytest.FixtureRequest) -> tuple[Sigmas, Sigmas]:
    """What this process's backend says, and what another one does."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return keras_sigmas.sigmas(), json.loads(elsewhere(request.param, "keras_sigmas.py"))


def worst(one: Sigmas, other: Sigmas, names: set[str]) -> float:
    """The largest relative difference of a σ or an m."""
    found = [0.0]
    for name in names:
        assert one[name].keys() == other[name].keys()
        for path, numbers in one[name].items():
            for a, b in zip(numbers, other[name][path], strict=True):
                found.append(abs(a / b - 1))
    return max(found)


def test_the_backends_agree(both: tuple[Sigmas, Sigmas]) -> None:
    one, other = both
    assert one.keys() == other.keys()
    sampled = keras_sigmas.SAMPLED
    assert worst(one, other, one.keys() - sampled) < 0.01
    assert worst(one, other, sampled) < 0.02


def test_tensorflow_is_imported_on_its_own_backend_alone() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    code = (
        "import sys, anyinit\n"
        "print('tensorflow' in sys.modules)\n"
        "import keras, anyinit.keras\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])\n"
        "anyinit.keras.init(model)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    assert elsewhere("tensorflow", "-c", code).split() == ["False", "True"]
    assert elsewhere("jax", "-c", code).split() == ["False", "False"]
