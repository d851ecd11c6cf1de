"""All lowerings by the type of the operation."""

from __future__ import annotations

from anyinit_tensorflow._lowerings import (
    elementwise,
    indexing,
    layout,
    linear,
    lists,
    random,
    reduce,
)
from anyinit_tensorflow._operation import Lowering

LOWERINGS: dict[str, Lowering] = {
    **elementwise.LOWERINGS,
    **layout.LOWERINGS,
    **indexing.LOWERINGS,
    **reduce.LOWERINGS,
    **linear.LOWERINGS,
    **lists.LOWERINGS,
    **random.LOWERINGS,
}

# These draw: their results are no constants, whatever their inputs are.
DRAWING = frozenset(random.LOWERINGS) - {"StatelessRandomGetAlg"}
