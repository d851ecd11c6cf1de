"""All lowerings by the name of the operator."""

from __future__ import annotations

from anyinit_torch import (
    _convolution,
    _creation,
    _elementwise,
    _indexing,
    _layout,
    _linear,
    _normalization,
    _recurrent,
    _reduce,
    _spectral,
    _views,
)
from anyinit_torch._lowering import Lowering

LOWERINGS: dict[str, Lowering] = {
    **_elementwise.LOWERINGS,
    **_layout.LOWERINGS,
    **_reduce.LOWERINGS,
    **_linear.LOWERINGS,
    **_convolution.LOWERINGS,
    **_normalization.LOWERINGS,
    **_indexing.LOWERINGS,
    **_creation.LOWERINGS,
    **_recurrent.LOWERINGS,
    **_spectral.LOWERINGS,
    **_views.LOWERINGS,
}
