"""What selects an executable, and the numbers in which its runs differ."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import anyinit
import anyinit.flax
from experiments.study.model import GPT
from experiments.study.protocol import Protocol, Scheme

EXAMPLE = np.zeros((1, 8), np.int32)  # tokens, of which only the shape counts


@dataclasses.dataclass(frozen=True)
class Shape:
    """What selects an executable; all other numbers of a scheme are traced."""

    vocab: int
    width: int
    layers: int
    tied: bool
    dtype: Any

    def model(self, lookup: float | jax.Array = 1.0, logits: float | jax.Array = 1.0) -> GPT:
        """The network with these multipliers."""
        return GPT(self.vocab, self.width, self.layers, self.tied, lookup, logits, self.dtype)


class Traced(NamedTuple):
    """The numbers in which the runs of one shape differ."""

    lookup: Any
    logits: Any
    matched: Any
    rate: Any = np.float32(0)
    seed: Any = np.int32(0)


def matrix_dtype() -> Any:
    """In which matrices are multiplied: bfloat16, except on a CPU."""
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def shape_of(protocol: Protocol, scheme: Scheme, width: int) -> Shape:
    """The shape of a scheme's network."""
    return Shape(protocol.vocab, width, protocol.layers, scheme.tied, matrix_dtype())


def traced(scheme: Scheme, width: int, rate: float = 0.0, seed: int = 0) -> Traced:
    """A scheme's numbers at this width."""
    lookup, logits = np.float32(scheme.lookup(width)), np.float32(scheme.logits(width))
    return Traced(lookup, logits, np.bool_(scheme.matched), np.float32(rate), np.int32(seed))


@functools.cache
def plan_of(shape: Shape) -> anyinit.Plan:
    """The library's plan of D at this shape, or of E where the table is not tied."""
    model = shape.model(logits=shape.width**-0.5 if shape.tied else 1.0)
    return anyinit.flax.plan(model, EXAMPLE)


def traced_example() -> Traced:
    """Numbers of which only shapes and dtypes count."""
    return Traced(np.float32(1), np.float32(1), np.bool_(False))
