"""Writing into a view: the whole tensor with the viewed part replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings import layout
from anyinit_torch._lowerings.lowering import (
    Lowering,
    Result,
    abstract_value,
    axes_of,
    axis_of,
    cast,
)

WRITE = "anyinit.write_view"

_SAME_ORDER = frozenset(
    """view.default _unsafe_view.default reshape.default flatten.using_ints unflatten.int
    unsqueeze.default squeeze.default squeeze.dim squeeze.dims view_as.default detach.default
    alias.default contiguous.default to.dtype to.dtype_layout to.device expand.default
    lift_fresh.default _reshape_alias.default""".split()
)


def _write_view(
    result: Result,
    x: Any,
    part: Any,
    operator: str,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    pieces: tuple[jax.ShapeDtypeStruct, ...],
    pick: int | None,
) -> Any:
    """``x`` with the part that a view operator selects from it replaced by ``part``.

    Arguments:
        result: what the whole tensor is.
        x: the whole tensor before.
        part: what is written.
        operator: the view operator.
        args: its arguments after the tensor.
        named: its keyword arguments.
        pieces: shapes of all its results.
        pick: which of them was written to, where it has several.
    """
    part = cast(part, x.dtype)
    if operator in _SAME_ORDER and part.size == x.size:
        return part.reshape(x.shape)
    if operator == "slice.Tensor":
        return layout.LOWERINGS["slice_scatter.default"](result, x, part, *args, **named)
    if operator == "select.int":
        return layout.LOWERINGS["select_scatter.default"](result, x, part, *args, **named)
    order = _permutation(operator, x.ndim, args)
    if order is not None:
        return lax.transpose(part, tuple(int(i) for i in np.argsort(order)))
    if operator == "unbind.int":
        axis = axis_of(args[0] if args else 0, x.ndim)
        return lax.dynamic_update_slice_in_dim(x, jnp.expand_dims(part, axis), pick or 0, axis)
    with jax.ensure_compile_time_eval():
        places = jnp.arange(x.size, dtype=np.int32).reshape(x.shape)
        outputs = tuple(abstract_value(p.shape, np.dtype(np.int32)) for p in pieces)
        viewed = layout.LOWERINGS[operator](Result(outputs, result.key), places, *args, **named)
        index = np.asarray(viewed if pick is None else viewed[pick]).reshape(-1)
    return x.reshape(-1).at[index].set(part.reshape(-1)).reshape(x.shape)


def _permutation(operator: str, rank: int, args: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The order of axes that a transposing view gives, if it is one."""
    order = list(range(rank))
    if operator == "permute.default":
        return axes_of(args[0], rank)
    if operator in ("t.default", "numpy_T.default"):
        return tuple(reversed(order))
    if operator in ("mT.default", "mH.default"):
        args = (-1, -2)
    elif operator not in ("transpose.int", "swapaxes.default", "swapdims.default"):
        return None
    first, second = (axis_of(axis, rank) for axis in args)
    order[first], order[second] = order[second], order[first]
    return tuple(order)


LOWERINGS: dict[str, Lowering] = {WRITE: _write_view}
