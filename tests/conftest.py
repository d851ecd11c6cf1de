"""Settings that must be in place before JAX is imported, and strict dtype promotion."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most programs here are compiled for a single run: compiling is what takes the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
)

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test under strict dtype promotion.

    Flax layers keep to it in float32. Flax's bfloat16 layers and optax's Adam do not: tests of
    theirs are marked ``standard_promotion``.
    """
    standard = request.node.get_closest_marker("standard_promotion") is not None
    with jax.numpy_dtype_promotion("standard" if standard else "strict"):
        yield


@pytest.fixture(autouse=True)
def fresh_keras(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let Keras start anew in each test: it numbers layers by what the process has made before."""
    keras = getattr(getattr(request.node, "module", None), "keras", None)
    if keras is None:
        yield
        return
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True, scope="module")
def released() -> Iterator[None]:
    """Let go of what a file's tests have compiled: all of it takes gigabytes in each process."""
    yield
    jax.clear_caches()
