"""Keras models of the tests; they run on every backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

VOCAB, LENGTH, D = 500, 12, 32

Factor = Callable[[Any, float], Any]

# A factor v on a signal h, as people write it.
FACTORS: dict[str, Factor] = {
    "number_right": lambda h, v: h * v,
    "number_left": lambda h, v: v * h,
    "division": lambda h, v: h / (1 / v),
    "multiply": lambda h, v: ops.multiply(h, v),
    "multiply_keyword": lambda h, v: ops.multiply(x1=h, x2=v),
    "rescaling": lambda h, v: layers.Rescaling(v)(h),
    "lambda": lambda h, v: layers.Lambda(lambda t: t * v)(h),
    "sqrt": lambda h, v: h / ops.sqrt(1 / v**2),
}


def tokens(seed: int, vocab: int = VOCAB, batch: int = 32, length: int = LENGTH) -> np.ndarray:
    """Uniform tokens."""
    return np.random.default_rng(seed).integers(0, vocab, (batch, length)).astype("int32")


def normal(seed: int, *shape: int) -> np.ndarray:
    """Unit normal signal."""
    return np.random.default_rng(1000 + seed).normal(size=shape).astype("float32")


def tied(d: int, factor: Factor | None = None, place: str = "after", **options: Any) -> Any:
    """The page's model: a tied table whose logits are multiplied by 1/√d."""
    idx = keras.Input((None,), dtype="int32")
    table = layers.ReversibleEmbedding(VOCAB, d, name="table", **options)
    h = layers.LayerNormalization(epsilon=1e-6, name="norm")(table(idx))
    if factor is not None and place == "before":
        h = factor(h, d**-0.5)
    logits = table(h, reverse=True)
    if factor is not None and place == "after":
        logits = factor(logits, d**-0.5)
    return keras.Model(idx, logits)


class Subclassed(keras.Model):
    """The same as a subclass without a ``training`` argument."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d
        self.table = layers.ReversibleEmbedding(VOCAB, d, name="table")
        self.norm = layers.LayerNormalization(epsilon=1e-6, name="norm")

    def call(self, idx: Any) -> Any:
        return self.table(self.norm(self.table(idx)), reverse=True) * self.d**-0.5


class Head(layers.Layer):
    """Reads a table that it is given."""

    def __init__(self, table: Any, **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def call(self, h: Any) -> Any:
        read = ops.matmul(h, ops.transpose(self.table.embeddings))
        return read / math.sqrt(self.table.output_dim)


def custom_head(d: int) -> Any:
    """The table is read by a custom layer."""
    idx = keras.Input((None,), dtype="int32")
    table = layers.Embedding(VOCAB, d, name="table")
    h = layers.LayerNormalization(epsilon=1e-6, name="norm")(table(idx))
    return keras.Model(idx, Head(table)(h))


class Block(layers.Layer):
    """A pre-norm transformer block as a custom layer with sublayers."""

    def __init__(self, d: int, heads: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.norm_1 = layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(heads, d // heads)
        self.norm_2 = layers.LayerNormalization()
        self.up = layers.Dense(4 * d, activation="gelu")
        self.down = layers.Dense(d)

    def call(self, x: Any) -> Any:
        h = self.norm_1(x)
        x = x + self.attention(h, h, use_causal_mask=True)
        return x + self.down(self.up(self.norm_2(x)))


def decoder(d: int = D, depth: int = 2) -> Any:
    """A small GPT of custom blocks with a tied table."""
    idx = keras.Input((LENGTH,), dtype="int32")
    table = layers.ReversibleEmbedding(VOCAB, d, name="table")
    positions = layers.Embedding(LENGTH, d, name="positions")
    x = table(idx) + positions(ops.arange(LENGTH))
    x = layers.Rescaling(1.0)(x)  # dense again: see the sparse mark that addition may leave
    for number in range(depth):
        x = Block(d, name=f"block_{number}")(x)
    x = layers.LayerNormalization(name="last_norm")(x)
    return keras.Model(idx, table(x, reverse=True))


def residual_mlp(depth: int = 12, d: int = D) -> Any:
    """Residual branches without any norm, functional; gives the logits and the stream."""
    x = inputs = keras.Input((d,))
    for number in range(depth):
        h = layers.Dense(2 * d, activation="gelu", name=f"up_{number}")(x)
        x = layers.Add()([x, layers.Dense(d, name=f"down_{number}")(h)])
    return keras.Model(inputs, [layers.Dense(10, name="head")(x), x])


class ResidualMLP(keras.Model):
    """The same, subclassed."""

    def __init__(self, depth: int = 12, d: int = D) -> None:
        super().__init__()
        self.up = [
            layers.Dense(2 * d, activation="gelu", name=f"up_{number}") for number in range(depth)
        ]
        self.down = [layers.Dense(d, name=f"down_{number}") for number in range(depth)]
        self.head = layers.Dense(10, name="head")

    def call(self, x: Any) -> Any:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(up(x))
        return self.head(x), x


def _chain(shape: tuple[int | None, ...], *parts: Any, dtype: str = "float32") -> Any:
    x = inputs = keras.Input(shape, dtype=dtype)
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


def attention(grouped: bool) -> Any:
    inputs = keras.Input((LENGTH, D))
    kind: Any = (
        layers.GroupQueryAttention(D // 4, 4, 2) if grouped else layers.MultiHeadAttention(4, 8)
    )
    h = layers.LayerNormalization()(inputs)
    return keras.Model(inputs, kind(h, h) + inputs)


def resnet() -> Any:
    def conv(filters: int, strides: int = 1) -> Any:
        return layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)

    x = inputs = keras.Input((16, 16, 3))
    x = layers.ReLU()(layers.BatchNormalization()(conv(16)(x)))
    x = layers.MaxPooling2D()(x)
    for _ in range(2):
        h = layers.ReLU()(layers.BatchNormalization()(conv(16)(x)))
        x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(conv(16)(h))]))
    x = layers.GlobalAveragePooling2D()(x)
    # What is pooled is much the same for all images: few outputs would vary from draw to draw.
    return keras.Model(inputs, layers.Dense(100)(x))


def two_inputs() -> Any:
    """A table that is looked up twice and read once."""
    one = keras.Input((LENGTH,), dtype="int32")
    other = keras.Input((LENGTH,), dtype="int32")
    table = layers.ReversibleEmbedding(VOCAB, D, name="table")
    seen = layers.GlobalAveragePooling1D(keepdims=True)(
        layers.Dense(D, activation="relu", name="encoder")(layers.LayerNormalization()(table(one)))
    )
    h = layers.Dense(D, activation="relu", name="decoder")(
        layers.LayerNormalization()(table(other))
    )
    h = layers.LayerNormalization()(layers.Add()([h, seen]))
    return keras.Model([one, other], table(h, reverse=True))


def nested() -> Any:
    inner = keras.Sequential([layers.Dense(4 * D, activation="relu"), layers.Dense(4 * D)])
    return keras.Sequential([keras.Input((D,)), inner, layers.ReLU(), layers.Dense(D)])


# name: the model, its input
PLAIN: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "attention": (lambda: attention(False), lambda s: normal(s, 64, LENGTH, D)),
    "grouped_attention": (lambda: attention(True), lambda s: normal(s, 64, LENGTH, D)),
    "lstm": (
        lambda: _chain((LENGTH, D), layers.LSTM(D), layers.Dense(8)),
        lambda s: normal(s, 64, LENGTH, D),
    ),
    "gru": (
        lambda: _chain((LENGTH, D), layers.GRU(D, return_sequences=True), layers.Dense(8)),
        lambda s: normal(s, 64, LENGTH, D),
    ),
    "bidirectional": (
        lambda: _chain((LENGTH, D), layers.Bidirectional(layers.LSTM(D)), layers.Dense(8)),
        lambda s: normal(s, 64, LENGTH, D),
    ),
    "einsum": (
        lambda: _chain(
            (LENGTH, D),
            layers.EinsumDense("btd,dhk->bthk", (LENGTH, 4, 8), activation="relu"),
            layers.EinsumDense("bthk,hkd->btd", (LENGTH, D)),
        ),
        lambda s: normal(s, 64, LENGTH, D),
    ),
    "separable": (
        lambda: _chain(
            (12, 12, 8),
            layers.SeparableConv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(8, 3),
        ),
        lambda s: normal(s, 16, 12, 12, 8),
    ),
    "nested": (nested, lambda s: normal(s, 256, D)),
    "time_distributed": (
        lambda: _chain(
            (LENGTH, D),
            layers.TimeDistributed(layers.Dense(D, activation="relu")),
            layers.TimeDistributed(layers.Dense(8)),
        ),
        lambda s: normal(s, 64, LENGTH, D),
    ),
    "resnet": (resnet, lambda s: normal(s, 32, 16, 16, 3)),
    "two_inputs": (two_inputs, lambda s: [tokens(s), tokens(s + 50)]),
    "decoder": (decoder, lambda s: tokens(s)),
}
