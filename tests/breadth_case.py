"""What a model of the battery is: how to call it, and what it must show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from measure import normal, tokens
from models import Net

VOCAB, D, HEADS, OUT = 1_000, 128, 4, 256


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its inputs, and the figures that it must keep.

    Arguments:
        model: the module.
        inputs: fresh inputs for a seed.
        near: factor within which every site's measured second moment is as predicted.
        outputs: range of the second moment of every output; `None` where it is not wanted at 1.
        additions: N, additions to the residual stream since its last normalization; `None` where
            the model is a matter of opinion.
        scalable: whether the stream's branches can be scaled (sandwich norms cannot).
        options: further arguments of the model.
        slow: whether the model is left to the full battery.
    """

    model: nn.Module
    inputs: Callable[[int], tuple[Any, ...]]
    near: float = 1.5
    outputs: tuple[float, float] | None = (0.8, 1.25)
    additions: int | None = 0
    scalable: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slow: bool = False


def text(seed: int) -> tuple[jax.Array]:
    """A batch of tokens."""
    return (tokens(seed, VOCAB, (8, 32)),)


def two_texts(seed: int) -> tuple[jax.Array, jax.Array]:
    """Two batches of tokens, of different lengths."""
    return tokens(seed, VOCAB, (8, 24)), tokens(seed + 500, VOCAB, (8, 16))


def vectors(seed: int) -> tuple[jax.Array]:
    """A batch of vectors."""
    return (normal(seed, (64, D)),)


def sequences(seed: int) -> tuple[jax.Array]:
    """A batch of sequences of vectors."""
    return (normal(seed, (16, 24, D)),)


def images(seed: int) -> tuple[jax.Array]:
    """A batch of images with three channels."""
    return (normal(seed, (8, 16, 16, 3)),)


def network(body: Callable[..., Any], inputs: Callable[[int], Any], **fields: Any) -> Case:
    """A case whose model is one function of a module and its inputs."""
    return Case(Net(body), inputs, **fields)
