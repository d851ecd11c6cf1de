"""Mean-field samples: a signal is represented by samples of one random element.

A signal is a NumPy array of ``SAMPLES`` numbers, or a 0-d array when every element is the same
number. Elementwise functions act on the samples as they are, so no activation needs a formula.
New randomness enters as an *atom*: a seeded permutation of the normal quantiles, exact in its
one-dimensional moments. All floats are float64; integers and booleans keep their dtype.
"""

from __future__ import annotations

import functools
import math
import statistics

import numpy as np

SAMPLES = 8192

# A correlation of samples that is smaller is taken for their noise.
NOISE = 3.0 / math.sqrt(SAMPLES)


@functools.cache
def normal_quantiles() -> np.ndarray:
    """The normal quantiles at the midpoints of ``SAMPLES`` equal shares, with unit variance."""
    normal = statistics.NormalDist()
    upper = np.array([normal.inv_cdf(0.5 + (i + 0.5) / SAMPLES) for i in range(SAMPLES // 2)])
    quantiles = np.concatenate([-upper[::-1], upper])
    quantiles /= np.sqrt(np.mean(quantiles**2))
    quantiles.flags.writeable = False
    return quantiles


@functools.cache
def uniform_quantiles() -> np.ndarray:
    """The midpoints of ``SAMPLES`` equal shares of [0, 1]."""
    quantiles = (np.arange(SAMPLES) + 0.5) / SAMPLES
    quantiles.flags.writeable = False
    return quantiles


@functools.lru_cache(maxsize=8192)
def permutation(*key: int) -> np.ndarray:
    """A random permutation of the samples, the same for the same key."""
    order = np.random.default_rng(key).permutation(SAMPLES).astype(np.uint16)
    order.flags.writeable = False
    return order


def normal_atom(*key: int) -> np.ndarray:
    """Samples of a fresh standard normal variable."""
    return normal_quantiles()[permutation(*key)]


def complex_atom(*key: int) -> np.ndarray:
    """Samples of a fresh complex normal variable: real and imaginary parts of moment 1/2."""
    return np.asarray((normal_atom(*key) + 1j * normal_atom(*key, 1)) / np.sqrt(2.0))


def uniform_atom(*key: int) -> np.ndarray:
    """Samples of a fresh variable, uniform on [0, 1]."""
    return uniform_quantiles()[permutation(*key)]


def reshuffle(samples: np.ndarray, *key: int) -> np.ndarray:
    """The same marginal distribution, independent of the samples given."""
    return samples if samples.ndim == 0 else samples[permutation(*key)]


def swapped(samples: np.ndarray, *key: int) -> np.ndarray:
    """The samples with their places exchanged in pairs; done twice, the samples themselves."""
    order = permutation(*key).astype(np.int64)
    exchanged = np.empty_like(order)
    half = SAMPLES // 2
    exchanged[order[:half]], exchanged[order[half:]] = order[half:], order[:half]
    return samples[exchanged]


def independent_copy(samples: np.ndarray, *key: int) -> np.ndarray:
    """The same marginal distribution, reshuffled, without the correlation that chance leaves."""
    copy = reshuffle(samples, *key)
    if samples.ndim == 0 or samples.dtype.kind != "f":
        return copy
    mean, variance = mean_and_variance(samples)
    if not (variance > 0 and np.isfinite(variance)):
        return copy
    ours, theirs = samples - mean, copy - mean
    theirs = theirs - float(np.dot(ours, theirs)) / (SAMPLES * variance) * ours
    return np.asarray(mean + theirs * np.sqrt(variance * SAMPLES / np.dot(theirs, theirs)))


def quantile_draw(samples: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The samples' quantiles at levels in [0, 1]."""
    if samples.ndim == 0:
        return samples
    ordered = np.sort(samples)
    return ordered[np.minimum((levels * SAMPLES).astype(np.int64), SAMPLES - 1)]


def moment(samples: np.ndarray) -> float:
    """Second moment E[x²]."""
    numbers = _real(samples)
    if numbers.ndim == 0:
        return float(numbers) ** 2 if abs(float(numbers)) < 1e150 else float("inf")
    with np.errstate(all="ignore"):
        return float(np.dot(numbers, numbers) / SAMPLES)


def _real(samples: np.ndarray) -> np.ndarray:
    """The samples in float64; of complex ones the absolute values."""
    return (np.abs(samples) if samples.dtype.kind == "c" else samples).astype(
        np.float64, copy=False
    )


def mean_and_variance(samples: np.ndarray) -> tuple[float, float]:
    """Mean and variance of one element."""
    if samples.dtype.kind == "c":
        return 0.0, moment(samples)
    if samples.ndim == 0:
        return float(samples), 0.0
    numbers = samples.astype(np.float64, copy=False)
    mean = float(numbers.mean())
    centered = numbers - mean
    return mean, float(np.dot(centered, centered) / SAMPLES)


def spread(samples: np.ndarray) -> np.ndarray:
    """The samples as a full array, for operations that need one number a sample."""
    return np.broadcast_to(samples, (SAMPLES,)) if samples.ndim == 0 else samples


def normal(mean: float, variance: float, *key: int) -> np.ndarray:
    """Samples of a fresh normal variable; a plain number when the variance is zero."""
    if variance <= 0.0:
        return np.asarray(mean, dtype=np.float64)
    return mean + np.sqrt(variance) * normal_atom(*key)


def mixture(parts: list[np.ndarray], shares: list[float], *key: int) -> np.ndarray:
    """Samples that come from each part with the probability of its share."""
    first = parts[0]
    if all(part.ndim == 0 and part == first for part in parts):
        return first
    total = sum(shares)
    if total == 0 or len(parts) == 1:
        return first
    bounds = np.cumsum([share / total for share in shares])
    chosen = np.searchsorted(bounds, uniform_atom(*key), side="left")
    return np.choose(np.minimum(chosen, len(parts) - 1), [spread(part) for part in parts])


def place_along(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Indices along one axis of arrays of a shape."""
    size = shape[axis]
    return (uniform_atom(size, shape[:axis].count(size)) * size).astype(np.int64)


@functools.lru_cache(maxsize=1024)
def places(shape: tuple[int, ...]) -> np.ndarray:
    """Flat indices into arrays of a shape: one index an axis, the same for axes of one size.

    Whatever is read of the positions of a sequence (indices, masks, sines) is read at the same
    position.
    """
    index = np.zeros(SAMPLES, np.int64)
    for axis, size in enumerate(shape):
        index = index * size + place_along(shape, axis)
    index.flags.writeable = False
    return index


def from_array(array: np.ndarray) -> np.ndarray:
    """Samples of a known array's elements; one number when all are equal.

    Arrays are read at the same places, so a cosine and a sine table stay aligned.
    """
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    flat = array.reshape(-1)
    if flat.size == 0:
        return np.asarray(0.0)
    if flat.size == 1 or (flat == flat[0]).all():
        return flat[0:1].reshape(())
    return flat[places(array.shape)]
