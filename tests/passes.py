"""Forward passes of a tied language model, and what its table should get in each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from models import VOCAB

Width = Callable[[int], float]


def one(d: int) -> float:
    return 1.0


def root(d: int) -> float:
    return math.sqrt(d)


def inverse(d: int) -> float:
    return 1 / d


@dataclasses.dataclass(frozen=True)
class Pass:
    """A forward pass, and by width the σ·√d, the rate multiplier and E[x²] on arrival.

    Arguments:
        fields: fields of `TiedLM`.
        readout: whether the output is the (scaled) product itself.
        finish: turns the output into logits to measure.
    """

    fields: dict[str, Any]
    sigma: Width = one
    m: Width = one
    arrival: Width = inverse
    readout: bool = True
    finish: Callable[[jax.Array], jax.Array] = lambda logits: logits


def lookup_root(x: jax.Array, d: int) -> jax.Array:
    return x * jnp.sqrt(d)


def lookup_math_root(x: jax.Array, d: int) -> jax.Array:
    return x * math.sqrt(d)


def lookup_divided(x: jax.Array, d: int) -> jax.Array:
    return x / (x.shape[-1] ** -0.5)


def times(x: jax.Array, d: int) -> jax.Array:
    return x * d**-0.5


def divided(x: jax.Array, d: int) -> jax.Array:
    return x / d**0.5


def math_root(x: jax.Array, d: int) -> jax.Array:
    return x / math.sqrt(d)


def jnp_root(x: jax.Array, d: int) -> jax.Array:
    return x / jnp.sqrt(d)


def own_shape(x: jax.Array, d: int) -> jax.Array:
    return x * x.shape[-1] ** -0.5


def twelve(x: jax.Array, d: int) -> jax.Array:
    return 12 * x


def ninth(x: jax.Array, d: int) -> jax.Array:
    return x / 9


def cap(x: jax.Array, d: int) -> jax.Array:
    return 30 * jnp.tanh(x / 30)


def times_cap(x: jax.Array, d: int) -> jax.Array:
    return 30 * jnp.tanh(d**-0.5 * x / 30)


def head_slice(x: jax.Array, d: int) -> jax.Array:
    return x[..., : VOCAB // 2]


def last_position(x: jax.Array, d: int) -> jax.Array:
    return x[:, -1:]


def masked(x: jax.Array, d: int) -> jax.Array:
    return jnp.where(jnp.arange(x.shape[-1]) < VOCAB - 40, x, -1e9)


def log_softmax(x: jax.Array, d: int) -> jax.Array:
    return jax.nn.log_softmax(x)


def then(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """The second function after the first."""
    return lambda x, d: second(first(x, d), d)


def centred(logits: jax.Array) -> jax.Array:
    """What log_softmax took away is the same for all tokens."""
    return logits - jnp.mean(logits, -1, keepdims=True)


def unmasked(logits: jax.Array) -> jax.Array:
    return logits[..., : VOCAB - 40]


def scaled(fields: dict[str, Any], **changes: Any) -> Pass:
    """A pass whose logits carry a factor of 1/√d in all (D)."""
    return Pass(fields, **{"sigma": root, "m": root, "arrival": one} | changes)


C = {"lookup": lookup_root}
F: dict[str, Any] = {}
D = {"after": times}
UNDONE = {
    "sliced": (head_slice, lambda logits: logits),
    "last_position": (last_position, lambda logits: logits),
    "masked": (masked, unmasked),
    "log_softmax": (log_softmax, centred),
}
READS = ("matmul", "einsum", "dense", "take", "index", "one_hot")
HALF = {"dtype": jnp.bfloat16}
ALL_HALF = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}

MAIN = {
    "C": Pass(C, arrival=one),
    "F": Pass(F),
    "D": scaled(D),
    "twelve_and_ninth": Pass(
        {"lookup": twelve, "after": ninth},
        sigma=lambda d: 9,
        m=lambda d: 9,
        arrival=lambda d: 144 * 81 / d,
    ),
    "cap": Pass({"after": cap}, readout=False),
    "D_cap": scaled({"after": times_cap}, readout=False),
    "E": Pass({"read": "untied"}),
}

PASSES = (
    MAIN
    | {
        "C_math_sqrt": Pass({"lookup": lookup_math_root}, arrival=one),
        "C_divided": Pass({"lookup": lookup_divided}, arrival=one),
        "D_before": scaled({"before": times}),
        "D_divided": scaled({"after": divided}),
        "D_math_sqrt": scaled({"after": math_root}),
        "D_jnp_sqrt": scaled({"after": jnp_root}),
        "D_before_jnp_sqrt": scaled({"before": jnp_root}),
        "D_own_shape": scaled({"before": own_shape}),
        "D_param": scaled({"factor": "param"}),
        "D_collection": scaled({"factor": "collection"}),
        "F_bias": Pass({"bias": True}),
        "D_bias": scaled({"before": times, "bias": True}),
        "D_then_bias": scaled({"after": times, "bias": True}),
        "F_bfloat16": Pass(HALF),
        "C_bfloat16": Pass(C | HALF, arrival=one),
        "D_bfloat16": scaled(D | HALF),
        "F_bfloat16_params": Pass(ALL_HALF),
        "C_bfloat16_params": Pass(C | ALL_HALF, arrival=one),
        "D_bfloat16_params": scaled(D | ALL_HALF),
        "C_positions": Pass(C | {"positions": "embed"}, arrival=one),
        "F_positions": Pass({"positions": "embed"}),
        "C_positions_param": Pass(C | {"positions": "param"}, arrival=one),
        "F_positions_param": Pass({"positions": "param"}),
    }
    | {f"F_{name}": Pass({"after": f}, finish=g) for name, (f, g) in UNDONE.items()}
    | {f"D_{name}": scaled({"after": then(times, f)}, finish=g) for name, (f, g) in UNDONE.items()}
    | {f"C_{read}": Pass(C | {"read": read}, arrival=one) for read in READS}
    | {f"F_{read}": Pass({"read": read}) for read in READS}
    | {f"D_{read}": scaled(D | {"read": read}) for read in READS}
)

INITS = {
    "default": nn.linear.default_embed_init,
    "unit": nn.initializers.normal(1.0),
    "small": nn.initializers.normal(0.02),
}
