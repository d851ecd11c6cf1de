"""An operator without a lowering, as one JAX primitive that the analysis reports by name.

Where real arrays are run, it is executed by torch itself, in a callback.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from anyinit._graph.callback import callback_primitive
from anyinit_torch._program import Call, map_values


@dataclasses.dataclass(frozen=True, eq=False)
class _Execution:
    """One call of an operator by torch.

    Arguments:
        call: the recorded call.
        specs: shape and dtype of each result that is a tensor.
    """

    call: Call
    specs: tuple[tuple[tuple[int, ...], Any], ...]

    def __repr__(self) -> str:
        return self.call.operator

    def __call__(self, *operands: Any) -> list[np.ndarray]:
        function = _operator(self.call.operator)
        tensors = iter([_tensor(np.asarray(operand)) for operand in operands])
        given = map_values(lambda _: next(tensors), (self.call.args, self.call.kwargs))
        with torch.no_grad():
            results = function(*given[0], **given[1])
        listed = results if isinstance(results, (tuple, list)) else [results]
        arrays = [_array(result) for result in listed if isinstance(result, torch.Tensor)]
        return [
            array.astype(dtype).reshape(shape)
            for array, (shape, dtype) in zip(arrays, self.specs, strict=True)
        ]


def opaque(
    call: Call, operands: Sequence[Any], outputs: Sequence[jax.ShapeDtypeStruct | None]
) -> list[Any]:
    """Apply the primitive that stands for an unknown operator.

    Arguments:
        call: the recorded call of the operator.
        operands: its array arguments, in the order in which the call names them.
        outputs: shape and dtype of its results; ``None`` for those that are no tensor.

    Returns:
        One abstract result for each output, ``None`` in the same places.
    """
    specs = tuple((tuple(o.shape), o.dtype) for o in outputs if o is not None)
    results = iter(
        _primitive(call.operator).bind(  # type: ignore[no-untyped-call]
            *operands, execution=_Execution(call, specs)
        )
    )
    return [None if output is None else next(results) for output in outputs]


_primitive = functools.cache(callback_primitive)


def _operator(name: str) -> Callable[..., Any]:
    """The torch operator of a recorded name."""
    *namespace, stem, overload = name.split(".")
    found: Any = torch.ops
    try:
        for part in (*(namespace or ["aten"]), stem, overload):
            found = getattr(found, part)
    except AttributeError:
        raise NotImplementedError(
            f"The operator {name} cannot be run on its own, so nothing behind it can be measured; "
            "nothing was changed. Use mode='analytic' for this model."
        ) from None
    return found


def _tensor(array: np.ndarray) -> torch.Tensor:
    """An array as torch has it: 32-bit integers stand for its 64-bit ones."""
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    wide = array.astype(np.int64) if array.dtype == np.int32 else array
    return torch.from_numpy(np.array(wide))


def _array(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().to("cpu")
    plain = plain.float() if plain.dtype == torch.bfloat16 else plain
    return plain.resolve_conj().resolve_neg().numpy()
