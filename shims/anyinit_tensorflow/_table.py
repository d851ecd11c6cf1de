"""All lowerings by the type of the operation."""

from __future__ import annotations

from anyinit_tensorflow import (
    _elementwise,
    _indexing,
    _layout,
    _linear,
    _lists,
    _random,
    _reduce,
)
from anyinit_tensorflow._operation import Lowering

LOWERINGS: dict[str, Lowering] = {
    **_elementwise.LOWERINGS,
    **_layout.LOWERINGS,
    **_indexing.LOWERINGS,
    **_reduce.LOWERINGS,
    **_linear.LOWERINGS,
    **_lists.LOWERINGS,
    **_random.LOWERINGS,
}

# These draw: their results are no constants, whatever their inputs are.
DRAWING = frozenset(_random.LOWERINGS) - {"StatelessRandomGetAlg"}
