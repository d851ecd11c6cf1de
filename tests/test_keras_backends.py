"""One plan on every backend: σ of every variable agrees between JAX and torch."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

import keras_sigmas

HERE = pathlib.Path(__file__).parent

pytestmark = [
    pytest.mark.standard_promotion,
    # Keras hands numpy.array variables and tensors that do not know copy=.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

Sigmas = dict[str, dict[str, tuple[float, float]]]


@pytest.fixture(scope="module")
def both() -> tuple[Sigmas, Sigmas]:
    """What this process's backend says, and what the other one does."""
    other = "jax" if keras.backend.backend() == "torch" else "torch"
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    done = subprocess.run(
        [sys.executable, "keras_sigmas.py"],
        cwd=HERE,
        env={**os.environ, "KERAS_BACKEND": other, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return keras_sigmas.sigmas(), json.loads(done.stdout)


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
    assert worst(one, other, one.keys() - keras_sigmas.RECURRENT - sampled) < 0.01
    assert worst(one, other, sampled) < 0.02


@pytest.mark.xfail(
    reason="Keras writes the time loop out under torch, so no loop limits recurrent weights there",
    strict=True,
)
def test_the_backends_agree_on_recurrent_layers(both: tuple[Sigmas, Sigmas]) -> None:
    assert worst(*both, keras_sigmas.RECURRENT) < 0.01
