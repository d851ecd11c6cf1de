"""Parameters of the hand-written plan `plans.scaled_logits`, in every container."""

from __future__ import annotations

from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from plans import scaled_logits

from anyinit._apply.variables import Variables


def inner(vocab: int = 40, d: int = 16) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "wte": {"embedding": jax.random.normal(keys[0], (vocab, d))},
        "wpe": {"embedding": 0.1 * jax.random.normal(keys[1], (8, d))},
        "up": {"kernel": jax.random.normal(keys[2], (d, d)), "bias": jnp.zeros(d)},
        "norm": {"scale": jnp.ones(d)},
    }


def whole(**further: Any) -> dict[str, Any]:
    return {"params": inner(), **further}


def variables(**further: Any) -> Variables:
    return Variables(whole(**further), plan=scaled_logits())


def boxed() -> dict[str, Any]:
    """As Flax makes them under `nn.with_partitioning`."""
    return jax.tree.map(lambda leaf: nn.Partitioned(leaf, names=(None,) * leaf.ndim), inner())


@flax.struct.dataclass
class Layer:
    kernel: Any
    bias: Any


@flax.struct.dataclass
class Model:
    wte: dict[str, Any]
    wpe: dict[str, Any]
    up: Layer
    norm: dict[str, Any]


def as_dataclass() -> Model:
    tree = inner()
    return Model(tree["wte"], tree["wpe"], Layer(**tree["up"]), tree["norm"])


def as_state() -> nnx.State:
    return nnx.State(jax.tree.map(nnx.Param, inner()))


CONTAINERS = {
    "dict": inner,
    "frozen": lambda: freeze(inner()),
    "whole dict": whole,
    "whole frozen": lambda: freeze(whole()),
    "variables": variables,
    "boxed": boxed,
    "dataclass": as_dataclass,
    "nnx.State": as_state,
}
