"""Contractions: products of matrices, attention, grouped matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anyinit_torch._lowerings.lowering import Lowering, Result, cast


def _matmul(result: Result, x: Any, y: Any, *_: Any, **__: Any) -> Any:
    return jnp.matmul(cast(x, result.dtype), cast(y, result.dtype))


def _linear(result: Result, x: Any, weight: Any, bias: Any = None) -> Any:
    axes = (((x.ndim - 1,), (weight.ndim - 1,)), ((), ()))
    y = lax.dot_general(x, weight, axes)
    return y if bias is None else y + jnp.broadcast_to(bias, y.shape)


def _added(added: Any, product: Any, beta: Any, alpha: Any) -> Any:
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    added = added if beta == 1 else added * beta
    return jnp.broadcast_to(added, product.shape) + product


def _addmm(result: Result, added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(added, jnp.matmul(x, y), beta, alpha)


def _addbmm(result: Result, added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(added, jnp.einsum("bij,bjk->ik", x, y), beta, alpha)


def _outer(result: Result, x: Any, y: Any) -> Any:
    return x[:, None] * y[None, :]


def _addr(result: Result, added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(added, x[:, None] * y[None, :], beta, alpha)


def _einsum(result: Result, equation: str, operands: Sequence[Any], **_: Any) -> Any:
    return jnp.einsum(equation, *operands)


def _tensordot(result: Result, x: Any, y: Any, left: Sequence[int], right: Sequence[int]) -> Any:
    return jnp.tensordot(x, y, (tuple(left), tuple(right)))


def _bilinear(result: Result, x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    product = jnp.einsum("...i,kij,...j->...k", x, weight, y)
    return product if bias is None else product + jnp.broadcast_to(bias, product.shape)


def _attention(
    result: Result,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention, spelt as the scores' softmax times the values."""
    if enable_gqa and query.ndim > 2:
        key, value = (_repeated(part, query.shape[-3]) for part in (key, value))
    width = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.matmul(query, jnp.swapaxes(key, -1, -2)) * width
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape[-2:], i) for i in (0, 1))
        scores = _masked(scores, rows >= columns)
    elif attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = _masked(scores, attn_mask)
    elif attn_mask is not None:
        scores = scores + jnp.broadcast_to(cast(attn_mask, scores.dtype), scores.shape)
    shares = jax.nn.softmax(scores, -1)
    if dropout_p:
        kept = jax.random.bernoulli(result.key(), 1.0 - dropout_p, shares.shape)
        shares = lax.select(kept, shares / (1.0 - dropout_p), jnp.zeros_like(shares))
    return jnp.matmul(shares, value)


def _masked(scores: Any, kept: Any) -> Any:
    """Scores that the softmax leaves out where they are not kept; float16 ends at 65,504."""
    lowest = float(jnp.finfo(scores.dtype).min)  # type: ignore[no-untyped-call]
    rest = jnp.full_like(scores, max(-1e9, lowest))
    return lax.select(jnp.broadcast_to(kept, scores.shape), scores, rest)


def _repeated(part: Any, heads: int) -> Any:
    """Keys or values of each group of heads, once a head."""
    groups = part.shape[-3]
    if groups == heads:
        return part
    wide = jnp.expand_dims(part, -3)
    target = (*part.shape[:-2], heads // groups, *part.shape[-2:])
    return jnp.broadcast_to(wide, target).reshape(*part.shape[:-3], heads, *part.shape[-2:])


def _attention_with_extras(result: Result, *args: Any, **named: Any) -> Any:
    """The fused kernels return statistics beside the attention, which nothing reads forward."""
    query, key, value, *rest = args
    named.pop("attn_mask", None)
    causal = next((a for a in rest if isinstance(a, bool)), named.get("is_causal", False))
    scale = named.get("scale")
    first = _attention(result, query, key, value, is_causal=causal, scale=scale)
    others = [
        None if output is None else jnp.zeros(output.shape, output.dtype)
        for output in result.outputs[1:]
    ]
    return (first, *others)


def _grouped(
    result: Result, x: Any, weight: Any, offs: Any = None, bias: Any = None, *_: Any, **__: Any
) -> Any:
    """Rows of ``x``, sorted by group, each times its own group's matrix."""
    if x.ndim == 3 or offs is None:
        product = jnp.matmul(x, weight)
    elif weight.ndim == 3:
        sizes = jnp.diff(offs, prepend=jnp.zeros((1,), offs.dtype))
        product = lax.ragged_dot(x, cast(weight, x.dtype), cast(sizes, np.dtype(np.int32)))
    else:
        product = jnp.broadcast_to(jnp.matmul(x, weight)[None], result.shape)
    return product if bias is None else product + jnp.broadcast_to(bias, product.shape)


def _cdist(result: Result, x: Any, y: Any, p: float = 2.0, *_: Any) -> Any:
    gap = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    return lax.sqrt(jnp.sum(lax.square(gap), -1)) if p == 2 else jnp.sum(gap**p, -1) ** (1 / p)


def _cosine(result: Result, x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    lengths = [jnp.sqrt(jnp.sum(lax.square(part), dim)) for part in (x, y)]
    product = jnp.maximum(lengths[0], eps) * jnp.maximum(lengths[1], eps)
    return jnp.sum(x * y, dim) / product


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        """matmul.default mm.default bmm.default mv.default dot.default vdot.default
        __rmatmul__.default""".split(),
        _matmul,
    ),
    **dict.fromkeys(
        """_scaled_dot_product_flash_attention_for_cpu.default
        _scaled_dot_product_flash_attention.default _scaled_dot_product_efficient_attention.default
        _scaled_dot_product_cudnn_attention.default
        _scaled_dot_product_attention_math.default""".split(),
        _attention_with_extras,
    ),
    "_cdist_forward.default": _cdist,
    "_grouped_mm.default": _grouped,
    "_trilinear.default": lambda result, x, w, y, *_: jnp.einsum("...i,kij,...j->...k", x, w, y),
    "addbmm.default": _addbmm,
    "addmm.default": _addmm,
    "addmv.default": _addmm,
    "addr.default": _addr,
    "baddbmm.default": _addmm,
    "bilinear.default": _bilinear,
    "cdist.default": _cdist,
    "cosine_similarity.default": _cosine,
    "einsum.default": _einsum,
    "inner.default": lambda result, x, y: jnp.inner(x, y),
    "linear.default": _linear,
    "outer.default": _outer,
    "scaled_dot_product_attention.default": _attention,
    "tensordot.default": _tensordot,
    "transformers.grouped_mm_fallback.default": _grouped,
}
