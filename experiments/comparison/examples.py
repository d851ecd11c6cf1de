"""Batches of examples, each made anew from a key: nothing is read but the text.

A batch is a pair (inputs, targets). Float inputs have mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Batch = tuple[jax.Array, jax.Array]
Draw = Callable[[jax.Array], Batch]

SIDE = 16
NOISE = 0.5
SHAPES = ("disc", "square", "diamond", "ring", "cross", "saltire", "row", "column")
TEACHER_INPUTS = 32
TEACHER_CLASSES = 10


def windows(text: jax.Array, window: int, count: int) -> Draw:
    """Windows of a text as inputs, and the tokens that follow each token as targets."""

    def draw(key: jax.Array) -> Batch:
        starts = jax.random.randint(key, (count, 1), 0, len(text) - window)
        tokens = text[starts + jnp.arange(window + 1)]
        return tokens[:, :-1], tokens[:, 1:]

    return draw


def taught(count: int) -> Draw:
    """Normal inputs, and the class that a fixed random network of two layers gives them."""
    first, second = jax.random.split(jax.random.key(2024))
    inner = 2 * TEACHER_INPUTS
    into = jax.random.normal(first, (TEACHER_INPUTS, inner)) / TEACHER_INPUTS**0.5
    out = jax.random.normal(second, (inner, TEACHER_CLASSES))

    def draw(key: jax.Array) -> Batch:
        x = jax.random.normal(key, (count, TEACHER_INPUTS))
        return x, jnp.argmax(jnp.tanh(2 * x @ into) @ out, axis=-1)

    return draw


def shapes(count: int) -> Draw:
    """Noisy images of a shape of random place and size, and which shape it is."""

    def draw(key: jax.Array) -> Batch:
        images, _, kinds = _drawn(key, count)
        return images, kinds

    return draw


def masks(count: int) -> Draw:
    """Noisy images of a shape, and where the shape is."""

    def draw(key: jax.Array) -> Batch:
        images, covered, _ = _drawn(key, count)
        return images, covered

    return draw


def _drawn(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Images [count, side, side, 1], the pixels of their shapes, and the shapes' numbers."""
    keys = jax.random.split(key, 4)
    kinds = jax.random.randint(keys[0], (count,), 0, len(SHAPES))
    centre = jax.random.uniform(keys[1], (2, count, 1, 1), minval=5.0, maxval=SIDE - 5.0)
    size = jax.random.uniform(keys[2], (count, 1, 1), minval=3.0, maxval=5.0)
    place = jnp.arange(SIDE, dtype=jnp.float32)
    y, x = jnp.abs(place[:, None] - centre[0]), jnp.abs(place[None, :] - centre[1])
    distance, largest, thin = jnp.hypot(x, y), jnp.maximum(x, y), size / 3
    inside = jnp.stack(
        [
            distance < size,
            largest < size,
            x + y < size,
            jnp.abs(distance - size) < thin,
            (jnp.minimum(x, y) < thin) & (largest < size),
            (jnp.abs(x - y) < thin) & (largest < size),
            (y < thin) & (x < size),
            (x < thin) & (y < size),
        ]
    )
    covered = inside[kinds, jnp.arange(count)].astype(jnp.float32)
    images = covered + NOISE * jax.random.normal(keys[3], covered.shape)
    centred = images - jnp.mean(images, axis=(1, 2), keepdims=True)
    scaled = centred / jnp.std(images, axis=(1, 2), keepdims=True)
    return scaled[..., None], covered, kinds
