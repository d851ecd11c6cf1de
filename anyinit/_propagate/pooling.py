"""What a sum or an extreme over positions leaves of signals that are alike."""

from __future__ import annotations

import math

import numpy as np

from anyinit._propagate.positions import Pool
from anyinit._propagate.signal import NOISE, mean_and_variance, moment, normal_atom, quantile_draw
from anyinit._rules.reduce import sum_of_terms


def correlation(here: np.ndarray, there: np.ndarray) -> float:
    """The correlation between two positions; what is no more than noise of samples counts as zero.

    Arguments:
        here: samples of an element.
        there: samples of the same feature at another position.
    """
    _, variance, covariance = _common(here, there)
    return covariance / variance if variance > 0 else 0.0


def _common(here: np.ndarray, there: np.ndarray) -> tuple[float, float, float]:
    """Mean, variance, and covariance between two positions."""
    mean, variance = mean_and_variance(here)
    found = covariance(here, there)
    return mean, variance, min(found, variance) if found >= NOISE * variance else 0.0


def covariance(here: np.ndarray, there: np.ndarray) -> float:
    """The covariance between two signals; of complex ones its real part.

    Arguments:
        here: samples of one.
        there: samples of the other.
    """
    with np.errstate(all="ignore"):
        ours, theirs = (samples - mean_and_variance(samples)[0] for samples in (here, there))
        return float(np.mean((ours * np.conj(theirs)).real))


def covariance_beyond_chance(here: np.ndarray, there: np.ndarray) -> float:
    """The covariance between two signals; what is no more than noise of samples counts as zero.

    Arguments:
        here: samples of one.
        there: samples of the other.
    """
    found = covariance(here, there)
    with np.errstate(all="ignore"):
        scale = math.sqrt(mean_and_variance(here)[1] * mean_and_variance(there)[1])
    return found if abs(found) >= NOISE * scale else 0.0


def with_covariance(here: np.ndarray, there: np.ndarray, wanted: float) -> np.ndarray:
    """Samples at another position without what chance has added to their covariance.

    A sum a + b has between two positions the covariances of a, of b, and of each with the other;
    samples of independent a and b leave 1/√SAMPLES of each, as much as n positions weigh in a mean
    over n = √SAMPLES of them.

    Arguments:
        here: samples of an element.
        there: samples of the same feature at another position.
        wanted: the covariance between them.

    Returns:
        The samples there, with their mean and variance kept; as they are where no samples of that
        variance have the covariance wanted, or where they are not finite.
    """
    with np.errstate(all="ignore"):
        (mean, variance), (other, kept) = mean_and_variance(here), mean_and_variance(there)
        if not (variance > 0 and wanted * wanted < variance * kept < math.inf):
            return there
        ours = here - mean
        rest = there - other - covariance(here, there) / variance * ours
        left = moment(rest)
        if left == 0:
            return there
        scale = math.sqrt((kept - wanted * wanted / variance) / left)
        return np.asarray(other + wanted / variance * ours + scale * rest)


def sums_over(
    here: np.ndarray, there: np.ndarray, pool: Pool, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sum over positions, here and in another group of positions.

    n·(mean + what all positions have in common) + what is left of the differences. The common
    part is the best linear guess from two positions, and a fresh rest.
    """
    mean, variance, covariance = _common(here, there)
    count = pool.positions
    rest = covariance - 2 * covariance**2 / (variance + covariance) if variance > 0 else 0.0
    share = covariance / (variance + covariance) if variance > 0 else 0.0
    common = share * (here + there - 2 * mean) + math.sqrt(max(rest, 0.0)) * normal_atom(key, 1)
    noise = math.sqrt(max(variance - covariance, 0.0) * (1 / count - 1 / count**2))
    sums = []
    for place, samples in enumerate((here, there)):
        own = (samples - mean - common) / count
        sums.append(count * (mean + common + own + noise * normal_atom(key, 2 + place)))
    if pool.features > 1:
        return tuple(sum_of_terms(s, pool.features, key) for s in sums)  # type: ignore[return-value]
    return sums[0], sums[1]


def extremes_over(
    here: np.ndarray, there: np.ndarray, pool: Pool, largest: bool, key: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest (smallest) over positions, whose ranks have a common normal part."""
    _, variance, covariance = _common(here, there)
    alike = covariance / variance if variance > 0 else 0.0
    common = math.sqrt(alike) * normal_atom(key, 1)
    found = []
    for place in (0, 1):
        top = _largest_normal(pool.positions * pool.features, key, 2 + place)
        levels = _normal_levels(common + math.sqrt(1 - alike) * top)
        found.append(quantile_draw(here, levels if largest else 1.0 - levels))
    return found[0], found[1]


def _largest_normal(count: float, *key: int) -> np.ndarray:
    """Samples of the largest of several independent standard normals."""
    levels = _normal_levels(normal_atom(*key)) ** (1.0 / count)
    return _normal_scores(levels)


def _normal_levels(samples: np.ndarray) -> np.ndarray:
    """The standard normal's distribution function."""
    from scipy.special import ndtr  # slow to import, and few models need it

    return np.asarray(ndtr(samples))


def _normal_scores(levels: np.ndarray) -> np.ndarray:
    """The standard normal's quantiles."""
    from scipy.special import ndtri

    return np.asarray(ndtri(np.clip(levels, 1e-12, 1 - 1e-12)))
