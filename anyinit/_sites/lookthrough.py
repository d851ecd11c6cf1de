"""Soft caps and gates: a site behind the one where the walk ends.

A bounded function between the product and the output is a soft cap if a constant factor follows
it; the output is then the site. A product with another signal is a gate if a residual stream
follows it; the stream is then the site.
"""

from __future__ import annotations

from anyinit._sites.events import Acts, Structure
from anyinit._sites.softcap import soft_cap
from anyinit._sites.walk import Landing, land


def look_through(structure: Structure, landing: Landing) -> tuple[Landing, bool]:
    """Look through a soft cap to the output, and through a gate to the residual stream.

    Arguments:
        structure: the sums and streams of the graph.
        landing: where the walk from a weight's product ended.

    Returns:
        where what acts on the value decides its scale, and whether a gate was passed.
    """
    if landing.acts is Acts.NONLINEARITY:
        cap = soft_cap(structure.sums, landing.value)
        if cap is not None:
            path = landing.path.scaled(cap.slope)
            beyond = land(structure, cap.value, path)
            if len(beyond) == 1 and beyond[0].acts is Acts.OUTPUT:
                return beyond[0], False
    if landing.acts is Acts.PRODUCT:
        beyond_gate = _through_gates(structure, landing)
        if beyond_gate is not None:
            return beyond_gate, True
    return landing, False


def _through_gates(structure: Structure, landing: Landing) -> Landing | None:
    """The residual stream behind a gate, and behind a sum over what was gated (routing)."""
    for event in landing.events:
        value = structure.sums.graph.nodes[event.node].outputs[0]
        beyond = land(structure, value, landing.path)
        if len(beyond) != 1:
            continue
        if beyond[0].acts is Acts.RESIDUAL:
            return beyond[0]
        if beyond[0].acts in (Acts.PRODUCT, Acts.POOLING):
            return _through_gates(structure, beyond[0])
    return None
