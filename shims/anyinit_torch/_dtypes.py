"""The NumPy dtype that stands for each torch dtype in the analysis."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

# 64-bit values count as 32-bit ones: JAX has no others by default, and only scales matter here.
_ANALYSED: dict[torch.dtype, Any] = {
    torch.float64: np.float32,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
    torch.complex64: np.complex64,
    torch.complex128: np.complex64,
    torch.complex32: np.complex64,
    torch.int64: np.int32,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint32,
    torch.bool: np.bool_,
}


def analysed_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype with which a torch tensor enters the analysis.

    >>> analysed_dtype(torch.int64)
    dtype('int32')

    Arguments:
        dtype: any torch dtype; packed and quantized ones count as bytes.
    """
    analysed: np.dtype[Any] = np.dtype(_ANALYSED.get(dtype, np.uint8))
    return analysed


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype without the module.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'

    Arguments:
        dtype: any torch dtype.
    """
    return str(dtype).removeprefix("torch.")
