"""Random numbers: fresh ones at every operation, whatever its seed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit_tensorflow._operation import Lowering, Operation, number, numbers


def _uniform(operation: Operation, shape: Any, *_: Any) -> Any:
    return jax.random.uniform(operation.key(), numbers(shape), operation.dtype)


def _normal(operation: Operation, shape: Any, *_: Any) -> Any:
    return jax.random.normal(operation.key(), numbers(shape), operation.dtype)


def _truncated(operation: Operation, shape: Any, *_: Any) -> Any:
    return jax.random.truncated_normal(operation.key(), -2.0, 2.0, numbers(shape), operation.dtype)


def _integers(operation: Operation, shape: Any, *given: Any) -> Any:
    # The limits come first in the operators with a state, last in those without.
    low, high = given[:2] if operation.raw.type == "RandomUniformInt" else given[-2:]
    return jax.random.randint(operation.key(), numbers(shape), low, high, operation.dtype)


def _all_integers(operation: Operation, shape: Any, *_: Any) -> Any:
    return jax.random.bits(operation.key(), numbers(shape), np.uint32).astype(operation.dtype)


def _categorical(operation: Operation, logits: Any, count: Any, *_: Any) -> Any:
    shape = (number(count), logits.shape[0])
    drawn = jax.random.categorical(operation.key(), logits, axis=-1, shape=shape)
    return jnp.transpose(drawn)


def _gamma(operation: Operation, *given: Any) -> Any:
    shape = operation.shape
    return jax.random.gamma(operation.key(), jnp.asarray(given[-1]), shape, operation.dtype)


def _shuffled(operation: Operation, x: Any) -> Any:
    return jax.random.permutation(operation.key(), x)


def _counter(operation: Operation, seed: Any) -> Any:
    return [np.zeros((1,), np.uint32), np.zeros((2,), np.uint32)]


LOWERINGS: dict[str, Lowering] = {
    "Multinomial": _categorical,
    "RandomGamma": _gamma,
    "RandomShuffle": _shuffled,
    "RandomStandardNormal": _normal,
    "RandomUniform": _uniform,
    "RandomUniformInt": _integers,
    "StatelessMultinomial": _categorical,
    "StatelessRandomGammaV2": _gamma,
    "StatelessRandomGammaV3": _gamma,
    "StatelessRandomGetAlg": lambda operation: np.zeros((), np.int32),
    "StatelessRandomGetKeyCounter": _counter,
    "StatelessRandomNormal": _normal,
    "StatelessRandomNormalV2": _normal,
    "StatelessRandomUniform": _uniform,
    "StatelessRandomUniformFullInt": _all_integers,
    "StatelessRandomUniformFullIntV2": _all_integers,
    "StatelessRandomUniformInt": _integers,
    "StatelessRandomUniformIntV2": _integers,
    "StatelessRandomUniformV2": _uniform,
    "StatelessTruncatedNormal": _truncated,
    "StatelessTruncatedNormalV2": _truncated,
    "TruncatedNormal": _truncated,
}
