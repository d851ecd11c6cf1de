"""All lowerings by the name of the operator."""

from __future__ import annotations

from anyinit_torch._lowerings import (
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    linear,
    normalization,
    recurrent,
    reduce,
    spectral,
    views,
)
from anyinit_torch._lowerings.lowering import Lowering

LOWERINGS: dict[str, Lowering] = {
    **elementwise.LOWERINGS,
    **layout.LOWERINGS,
    **reduce.LOWERINGS,
    **linear.LOWERINGS,
    **convolution.LOWERINGS,
    **normalization.LOWERINGS,
    **indexing.LOWERINGS,
    **creation.LOWERINGS,
    **recurrent.LOWERINGS,
    **spectral.LOWERINGS,
    **views.LOWERINGS,
}
