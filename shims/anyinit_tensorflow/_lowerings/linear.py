"""Matrix products, convolutions and pooling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_tensorflow._operation import Lowering, Operation, numbers

# Kernels are laid out like this, whatever the layout of the input.
_KERNELS = {1: "WIO", 2: "HWIO", 3: "DHWIO"}


def _matmul(operation: Operation, x: Any, y: Any) -> Any:
    x = jnp.swapaxes(x, -1, -2) if operation.attribute("transpose_a") else x
    y = jnp.swapaxes(y, -1, -2) if operation.attribute("transpose_b") else y
    return jnp.matmul(x, y)


def _batched_matmul(operation: Operation, x: Any, y: Any) -> Any:
    x = jnp.swapaxes(x, -1, -2) if operation.attribute("adj_x") else x
    y = jnp.swapaxes(y, -1, -2) if operation.attribute("adj_y") else y
    return jnp.matmul(x, y)


def _bias(operation: Operation, x: Any, bias: Any) -> Any:
    if operation.attribute("data_format").startswith("NC"):
        return x + bias.reshape(-1, *(1,) * (x.ndim - 2))
    return x + bias


def _spatial(operation: Operation, name: str, values: Any = None) -> tuple[int, ...]:
    """The entries of an attribute for the axes that are neither batch nor channel."""
    layout = operation.attribute("data_format")
    listed = operation.attribute(name) if values is None else values
    return tuple(n for n, axis in zip(listed, layout, strict=True) if axis not in "NC")


def _padding(operation: Operation) -> Any:
    padding = operation.attribute("padding")
    if padding != "EXPLICIT":
        return padding
    pairs = np.asarray(operation.attribute("explicit_paddings")).reshape(-1, 2).tolist()
    return _spatial(operation, "", pairs)


def _convolve(operation: Operation, x: Any, kernel: Any, groups: int) -> Any:
    layout = operation.attribute("data_format")
    return lax.conv_general_dilated(
        x,
        kernel,
        _spatial(operation, "strides"),
        _padding(operation),
        rhs_dilation=_spatial(operation, "dilations"),
        dimension_numbers=(layout, _KERNELS[x.ndim - 2], layout),
        feature_group_count=groups,
    )


def _convolution(operation: Operation, x: Any, kernel: Any) -> Any:
    channels = x.shape[operation.attribute("data_format").index("C")]
    return _convolve(operation, x, kernel, channels // kernel.shape[-2])


def _depthwise(operation: Operation, x: Any, kernel: Any) -> Any:
    *sizes, channels, multiplier = kernel.shape
    return _convolve(
        operation, x, jnp.reshape(kernel, (*sizes, 1, channels * multiplier)), channels
    )


def _transposed(operation: Operation, sizes: Any, kernel: Any, y: Any) -> Any:
    """The convolution of an input of these sizes, transposed."""
    x = jax.ShapeDtypeStruct(tuple(numbers(sizes)), y.dtype)  # type: ignore[no-untyped-call]
    (found,) = jax.linear_transpose(lambda x: _convolution(operation, x, kernel), x)(y)
    return found


def _pooled(operation: Operation, x: Any, start: Any, function: Any) -> Any:
    window, strides = (tuple(operation.attribute(name)) for name in ("ksize", "strides"))
    return lax.reduce_window(x, start, function, window, strides, operation.attribute("padding"))


def _max_pool(operation: Operation, x: Any) -> Any:
    return _pooled(operation, x, np.asarray(-np.inf, x.dtype), lax.max)


def _average_pool(operation: Operation, x: Any) -> Any:
    zero = np.asarray(0, x.dtype)
    total = _pooled(operation, x, zero, lax.add)
    if operation.attribute("padding") == "VALID":
        return total / np.asarray(np.prod(operation.attribute("ksize")), x.dtype)
    return total / _pooled(operation, jnp.ones_like(x), zero, lax.add)


LOWERINGS: dict[str, Lowering] = {
    "AvgPool": _average_pool,
    "AvgPool3D": _average_pool,
    "BatchMatMul": _batched_matmul,
    "BatchMatMulV2": _batched_matmul,
    "BatchMatMulV3": _batched_matmul,
    "BiasAdd": _bias,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _transposed,
    "Conv3D": _convolution,
    "Conv3DBackpropInputV2": _transposed,
    "DepthwiseConv2dNative": _depthwise,
    "Einsum": lambda operation, *given: jnp.einsum(operation.attribute("equation"), *given),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "MaxPool3D": _max_pool,
}
