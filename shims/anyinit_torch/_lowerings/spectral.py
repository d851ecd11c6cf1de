"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from anyinit_torch._lowerings.lowering import Lowering, Result, cast

# torch's codes: 0 no normalization, 1 by the root of the number of elements, 2 by the number.
_BACKWARD, _ORTHONORMAL = 0, 1


def _norm(code: int, forward: bool) -> str:
    if code == _ORTHONORMAL:
        return "ortho"
    return "backward" if (code == _BACKWARD) == forward else "forward"


def _complex_to_complex(
    result: Result, x: Any, axes: Sequence[int], normalization: int, forward: bool
) -> Any:
    transform = jnp.fft.fftn if forward else jnp.fft.ifftn
    return transform(x, axes=tuple(axes), norm=_norm(normalization, forward))


def _real_to_complex(
    result: Result, x: Any, axes: Sequence[int], normalization: int, onesided: bool
) -> Any:
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return transform(x, axes=tuple(axes), norm=_norm(normalization, True))


def _complex_to_real(
    result: Result, x: Any, axes: Sequence[int], normalization: int, last: int
) -> Any:
    sizes = [result.shape[axis] for axis in axes]
    transformed = jnp.fft.irfftn(x, s=sizes, axes=tuple(axes), norm=_norm(normalization, False))
    return cast(transformed, result.dtype)


LOWERINGS: dict[str, Lowering] = {
    "_fft_c2c.default": _complex_to_complex,
    "_fft_c2r.default": _complex_to_real,
    "_fft_r2c.default": _real_to_complex,
}
