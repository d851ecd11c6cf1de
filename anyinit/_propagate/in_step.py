"""One weight used several times: what its uses produce is as alike as what enters them.

The products of one weight with two signals are jointly normal, with the correlation of the signals:
the gates of successive steps of a recurrent network, the two towers of a siamese one. A fresh
variable a use would make them independent. A weight that is met again transposed (the decoder of a
tied autoencoder, a power iteration) hands back a share of what entered it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from anyinit._propagate.signal import NOISE, moment, spread
from anyinit._sites.uses import Use

# Earlier uses that a product is correlated with.
_REMEMBERED = 4

# Keeps nearly equal signals solvable.
_RIDGE = 1e-6

Memory = dict[int, list[tuple[np.ndarray, np.ndarray]]]


@dataclasses.dataclass(frozen=True)
class Transposed:
    """The same weight, met before along its other axes.

    Arguments:
        identity: what identifies it there.
        fan: number of elements that the product sums over now, relative to then.
    """

    identity: int
    fan: float


def remembered_uses(
    uses: Mapping[int, Use], repeated: Mapping[int, int], *, everywhere: bool
) -> Mapping[int, tuple[int, Transposed | None]]:
    """The uses whose products are remembered, by the index of their node.

    Arguments:
        uses: the uses by the index of their node.
        repeated: identities of the weights that are used several times along the same axes.
        everywhere: whether every product is remembered, for what other positions make of it.

    Returns:
        What identifies the weight, and the same weight along its other axes, if it was met before.
    """
    met_again = {use.transposes for use in uses.values()}
    found: dict[int, tuple[int, Transposed | None]] = {}
    for index, use in uses.items():
        earlier = None if use.transposes is None else uses.get(use.transposes)
        transposed = None
        if earlier is not None:
            identity = repeated.get(earlier.node, -1 - earlier.node)
            transposed = Transposed(identity, use.fan / earlier.fan)
        if index in repeated or index in met_again or transposed is not None or everywhere:
            found[index] = (repeated.get(index, -1 - index), transposed)
    return found


def in_step(
    memory: Memory,
    identity: int,
    entering: np.ndarray,
    product: np.ndarray,
    transposed: Transposed | None = None,
) -> np.ndarray:
    """The product of a weight, as its earlier products make it likely.

    It is correlated with them as the signals are. With z = W·x behind it, Wᵀ·y has besides a part
    along x: E[W_ji·y_j | x] = σ²·E[f′(z)]·x_i for y = f(z) (Stein 1981).

    Arguments:
        memory: earlier signals and products of each identity; changed in place.
        identity: which weight this is.
        entering: samples of the signal.
        product: samples of a fresh normal product.
        transposed: the same weight along its other axes, if it was met before.
    """
    scale = np.sqrt(moment(product))
    size = np.sqrt(moment(entering))
    usable = scale > 0 and size > 0 and np.isfinite(scale) and np.isfinite(size)
    if not usable or "c" in (entering.dtype.kind, product.dtype.kind):
        return product
    signal, result = spread(entering) / size, spread(product) / scale
    news = signal
    earlier = memory.setdefault(identity, [])
    if earlier:
        signals = np.stack([before for before, _ in earlier])
        weights = _regression(signals, signals @ signal / signal.size)
        explained = weights @ np.stack([after for _, after in earlier])
        news = signal - weights @ signals
        rest = max(0.0, 1.0 - float(weights @ (signals @ signal)) / signal.size)
        known = 1.0 - rest if transposed is None else moment(explained)
        result = explained + np.sqrt(rest) * result
        result = result * np.sqrt((known + rest) / moment(result))
    if transposed is not None:
        result = result + _handed_back(memory, transposed, news)
    memory[identity] = [(signal, result), *earlier][:_REMEMBERED]
    return np.asarray(scale * result)


def _handed_back(memory: Memory, transposed: Transposed, news: np.ndarray) -> np.ndarray | float:
    """The part of a transposed product that lies along what entered the weight before.

    Arguments:
        memory: earlier signals and products of each identity.
        transposed: the weight along its other axes.
        news: what the signal has that no earlier signal of this product had.
    """
    earlier = memory.get(transposed.identity, [])
    if not earlier:
        return 0.0
    signals = np.stack([before for before, _ in earlier])
    products = np.stack([after for _, after in earlier])
    alike = products @ news / news.size
    noise = NOISE * np.sqrt(moment(news))
    alike = np.where(np.abs(alike) > noise, alike, 0.0)
    back = np.sqrt(transposed.fan) * (_regression(signals, alike) @ signals)
    return np.asarray(back)


def _regression(signals: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """The weights of signals in the best linear guess of what is so much alike to each of them."""
    among = signals @ signals.T / signals.shape[1] + _RIDGE * np.eye(len(signals))
    return np.asarray(np.linalg.solve(among, alike))
