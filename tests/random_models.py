"""Architectures as plain data: steps that a linen module carries out one after the other.

A step is a frozen dataclass, so that a generated model prints as the source that makes it again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

D, VOCAB, OUT, HEADS = 128, 2048, 256, 4

FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "silu": nn.silu,
    "tanh": jnp.tanh,
    "elu": nn.elu,
    "selu": nn.selu,
    "leaky": nn.leaky_relu,
    "mish": lambda x: x * jnp.tanh(nn.softplus(x)),
    "softsign": nn.soft_sign,
    "softplus": nn.softplus,
    "sigmoid": nn.sigmoid,
    "sine": jnp.sin,
    "cosine": jnp.cos,
    "abs": jnp.abs,
    "bump": lambda x: jnp.exp(-jnp.square(x)),
    "wave": lambda x: x * jnp.cos(x),
    "hard_swish": nn.hard_swish,
    "log": lambda x: jnp.sign(x) * jnp.log1p(jnp.abs(x)),
    "clip": lambda x: jnp.clip(x, -1.0, 1.5),
    "erf": jax.scipy.special.erf,
    "root": lambda x: x * jax.lax.rsqrt(1.0 + jnp.square(x)),
    "relu_squared": lambda x: jnp.square(nn.relu(x)),
    "signed_square": lambda x: x * jnp.abs(x),
    "square": jnp.square,
}
QUADRATIC = ("relu_squared", "signed_square", "square")

INITIALIZERS: dict[str, Callable[..., Any]] = {
    "lecun": nn.initializers.lecun_normal(),
    "small": nn.initializers.normal(0.02),
    "uniform": nn.initializers.variance_scaling(0.3, "fan_avg", "uniform"),
    "orthogonal": nn.initializers.orthogonal(),
    "xavier": nn.initializers.xavier_uniform(),
}


class Step(Protocol):
    """What a module does to a signal."""

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array: ...


class Weight(nn.Module):
    """One parameter."""

    initializer: Callable[..., Any]
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("weight", self.initializer, self.shape)


class Steps(nn.Module):
    """Carries out steps."""

    steps: tuple[Step, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return run(self.steps, self, x)


def run(steps: tuple[Step, ...], net: nn.Module, x: jax.Array) -> jax.Array:
    """The signal after all steps."""
    for step in steps:
        x = step(net, x)
    return x


@dataclasses.dataclass(frozen=True)
class Linear:
    """A drawn weight over the features, in several spellings."""

    spelling: str = "dense"
    init: str = "lecun"
    bias: str = "none"
    features: int = D
    factor: float = 1.0

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        biases = {"zeros": nn.initializers.zeros, "drawn": nn.initializers.normal(0.3)}
        options: dict[str, Any] = {"kernel_init": INITIALIZERS[self.init]}
        options |= {"use_bias": self.bias != "none", "bias_init": biases.get(self.bias)}
        if self.spelling == "dense":
            return nn.Dense(self.features, **options)(x)
        if self.spelling == "heads":
            h = nn.DenseGeneral((HEADS, self.features // HEADS), **options)(x)
            return h.reshape(*x.shape[:-1], self.features)
        if self.spelling == "merged":
            h = x.reshape(*x.shape[:-1], HEADS, -1)
            return nn.DenseGeneral(self.features, axis=(-2, -1), **options)(h)
        if self.spelling in ("conv", "dilated", "grouped", "depthwise"):
            grouped = {"grouped": HEADS, "depthwise": self.features}.get(self.spelling, 1)
            grouped = math.gcd(grouped, x.shape[-1])
            options |= {"feature_group_count": grouped, "padding": "CIRCULAR"}
            options["kernel_dilation"] = 2 if self.spelling == "dilated" else 1
            return nn.Conv(self.features, (3,) * (x.ndim - 2), **options)(x)
        shape = (x.shape[-1], self.features)
        shape = shape[::-1] if self.spelling == "transposed" else shape
        weight = Weight(INITIALIZERS[self.init], shape)() * self.factor
        return jnp.einsum("...d,df->...f", x, weight.T if self.spelling == "transposed" else weight)


@dataclasses.dataclass(frozen=True)
class Function:
    """An elementwise function of a·x + b, or two of them composed, multiplied or added."""

    first: str
    a: float = 1.0
    b: float = 0.0
    join: str = "none"
    second: str = "tanh"

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        inner = x if (self.a, self.b) == (1.0, 0.0) else self.a * x + self.b
        y, second = FUNCTIONS[self.first](inner), FUNCTIONS[self.second]
        match self.join:
            case "compose":
                return second(y)
            case "product":
                return y * second(x)
            case "sum":
                return y + second(x)
            case "difference":
                return y - second(x)
            case "maximum":
                return jnp.maximum(y, second(x))
        return y


@dataclasses.dataclass(frozen=True)
class Norm:
    """A normalization over the features."""

    kind: str = "layer"

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        match self.kind:
            case "layer":
                return nn.LayerNorm()(x)
            case "rms":
                return nn.RMSNorm()(x)
            case "group":
                return nn.GroupNorm(num_groups=HEADS)(x)
            case "plain":
                return nn.LayerNorm(use_scale=False, use_bias=False)(x)
            case "unit":
                return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


@dataclasses.dataclass(frozen=True)
class Factor:
    """A constant factor, in several spellings."""

    value: float = 2.0
    spelling: str = "times"

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        match self.spelling:
            case "times":
                return x * self.value
            case "over":
                return x / (1 / self.value)
            case "array":
                return x * jnp.full((x.shape[-1],), self.value)
            case "parameter":
                return x * Weight(nn.initializers.constant(self.value), ())()
            case "negative":
                return -self.value * x
        return x + (self.value - 1) * x


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout that is on."""

    rate: float = 0.1

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        return nn.Dropout(self.rate, deterministic=False)(x)


@dataclasses.dataclass(frozen=True)
class Residual:
    """stream·x + branch·f(x), its norm before, after the sum, or nowhere."""

    steps: tuple[Any, ...]
    norm: str = "before"
    branch: float = 1.0
    stream: float = 1.0
    flipped: bool = False

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        h = run(self.steps, net, nn.LayerNorm()(x) if self.norm == "before" else x)
        h = h if self.branch == 1.0 else self.branch * h
        x = x if self.stream == 1.0 else self.stream * x
        x = h + x if self.flipped else x + h
        return nn.LayerNorm()(x) if self.norm == "after" else x


@dataclasses.dataclass(frozen=True)
class Gate:
    """A product of two functions of the signal, from one fused weight or two."""

    function: str = "silu"
    fused: bool = False

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        if self.fused:
            left, right = jnp.split(nn.Dense(2 * D, use_bias=False)(x), 2, -1)
        else:
            left, right = nn.Dense(D, use_bias=False)(x), nn.Dense(D, use_bias=False)(x)
        return FUNCTIONS[self.function](left) * right


@dataclasses.dataclass(frozen=True)
class Split:
    """The features in parts, each with its own steps, joined again."""

    parts: tuple[tuple[Any, ...], ...]

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        pieces = jnp.split(x, len(self.parts), -1)
        done = [run(part, net, piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return jnp.concatenate(done, -1)


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Several ways from one signal, joined by a sum or a concatenation."""

    ways: tuple[tuple[Any, ...], ...]
    join: str = "sum"

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        done = [run(way, net, x) for way in self.ways]
        return jnp.concatenate(done, -1) if self.join == "concatenate" else sum(done[1:], done[0])


@dataclasses.dataclass(frozen=True)
class Shared:
    """One block, called several times."""

    steps: tuple[Any, ...]
    times: int = 2

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        block = Steps(self.steps)
        for _ in range(self.times):
            x = block(x)
        return x


class Carry(nn.Module):
    """Steps as the body of a scan."""

    steps: tuple[Step, ...]

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return run(self.steps, self, x), None


@dataclasses.dataclass(frozen=True)
class Scanned:
    """Layers with weights of their own, stacked along a leading axis."""

    steps: tuple[Any, ...]
    layers: int = 2

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        rngs = {"params": True, "dropout": True}
        lifted = nn.scan(Carry, {"params": 0}, split_rngs=rngs, length=self.layers)
        return lifted(self.steps)(x, None)[0]


@dataclasses.dataclass(frozen=True)
class Attention:
    """Self-attention of four heads, by Flax or by hand."""

    by_hand: bool = False
    causal: bool = True
    scale: str = "after"
    normalized: bool = False

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]), dtype=bool) if self.causal else None
        if not self.by_hand:
            layer = nn.MultiHeadDotProductAttention(HEADS, normalize_qk=self.normalized)
            return layer(x, mask=mask)
        fused = nn.Dense(3 * D, use_bias=False)(x).reshape(*x.shape[:2], 3, HEADS, -1)
        q, k, v = jnp.moveaxis(fused, 2, 0)
        if self.normalized:
            q, k = nn.RMSNorm()(q), nn.RMSNorm()(k)
        root = math.sqrt(D // HEADS)
        q = q / root if self.scale == "query" else q
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores / root if self.scale == "after" else scores
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        return nn.Dense(D, use_bias=False)(mixed.reshape(x.shape))


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """A cell along the second axis."""

    cell: str = "lstm"

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        cells = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell, "simple": nn.SimpleCell}
        return nn.RNN((cells | {"minimal": nn.MGUCell})[self.cell](D))(x)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A whole model: a stem for its inputs, steps, and a head.

    Arguments:
        inputs: `"vectors"`, `"sequences"`, `"images"` or `"tokens"`.
        steps: what lies between stem and head.
        pool: how positions are joined before the head: `"none"`, `"mean"`, `"max"` or `"last"`.
        normalized: whether a norm comes before the head.
        tied: whether the table of tokens is the head.
        lookup: factor on what is looked up.
        before: factor before the head.
        after: factor on the logits.
        cap: a soft cap of the logits, or 0.
    """

    inputs: str = "vectors"
    steps: tuple[Any, ...] = ()
    pool: str = "none"
    normalized: bool = True
    tied: bool = False
    lookup: float = 1.0
    before: float = 1.0
    after: float = 1.0
    cap: float = 0.0

    def __call__(self, net: nn.Module, x: jax.Array) -> jax.Array:
        table = nn.Embed(VOCAB, D) if self.inputs == "tokens" else None
        if table is not None:
            x = table(x)
            x = x if self.lookup == 1.0 else x * self.lookup
        elif self.inputs == "images":
            x = nn.Conv(D, (3, 3), padding="CIRCULAR")(x)
        x = run(self.steps, net, x)
        positions = tuple(range(1, x.ndim - 1))
        match self.pool:
            case "mean":
                x = jnp.mean(x, positions)
            case "max":
                # Of a weight's product: the largest of rare values is a matter of the draw.
                x = jnp.max(nn.Dense(D)(x), positions)
            case "last":
                x = x[:, -1]
        x = nn.LayerNorm()(x) if self.normalized else x
        x = x if self.before == 1.0 else x * self.before
        logits = table.attend(x) if self.tied and table is not None else nn.Dense(OUT)(x)
        logits = logits if self.after == 1.0 else logits * self.after
        return self.cap * jnp.tanh(logits / self.cap) if self.cap else logits


class Random(nn.Module):
    """A generated model."""

    architecture: Architecture

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.architecture(self, x)
