"""What products of two signals leave to the weights behind them: never more than they ask for."""

from __future__ import annotations

import math
from collections import defaultdict

from anyinit._propagate.propagate import Record
from anyinit._sites.sites import Site, Sites
from anyinit._solve.targets import target


def update_shares(sites: Sites, record: Record, shares: dict[int, float]) -> float:
    """Second moment that each side of a product may have so that the product has at most 1.

    Arguments:
        sites: all sites.
        record: what the last pass has seen.
        shares: changed in place.

    Returns:
        the largest relative change.
    """
    sides: dict[int, list[Site]] = defaultdict(list)
    for site in sites.sites:
        if site.product is not None:
            sides[site.product].append(site)
    change = _update_gates(sites, record, shares)
    for product, found in sides.items():
        sides_of = {site.value: site for site in found if site.path_factor}
        # Constant factors belong to the product: a side is what is there before them.
        present = math.prod(
            record.moments.get(value, 0.0) / site.path_factor**2 for value, site in sides_of.items()
        )
        if product not in record.moments or present <= 0:
            continue
        # The product is linear in each side: this is its second moment when both sides have 1.
        whole = record.moments[product] * found[0].product_gain / present
        old = shares.get(product, 1.0)
        shares[product] = new = min(1.0, whole ** (-1.0 / len(sides_of))) if whole > 0 else 1.0
        change = max(change, abs(math.log(new / old)))
    return change


def _update_gates(sites: Sites, record: Record, shares: dict[int, float]) -> float:
    """What a gate larger than one leaves of the target of a residual branch; never more than 1."""
    change = 0.0
    for site in sites.sites:
        whole = record.moments.get(site.value, 0.0)
        if not site.gated or whole <= 0:
            continue
        old = shares.get(site.use.value, 1.0)
        allowed = target(site, shares) * site.path_gain * site.before**2
        shares[site.use.value] = new = min(1.0, old * allowed / whole)
        change = max(change, abs(math.log(new / old)))
    return change
