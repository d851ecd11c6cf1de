"""Every lowering computes what the torch operator computes, on real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax
import torch.nn.functional as F

from anyinit_torch._lowerings.table import LOWERINGS
from anyinit_torch._record import Recorder, specification
from anyinit_torch._replay import is_lowered, replay


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def randn(*shape: int) -> Any:
    return torch.randn(shape)


def compare(function: Callable[..., Any], *tensors: Any, tolerance: float = 2e-5) -> set[str]:
    """Record a function, replay it in JAX, and compare; returns the operators that it used."""
    recorder = Recorder(is_lowered, lambda tensor: None)
    given = [tensor.clone() for tensor in tensors]
    inputs = tuple(recorder.enter(specification(tensor), [tensor]) for tensor in given)
    arrays = [np.asarray(tensor.numpy()) for tensor in tensors]
    with torch.inference_mode(), recorder:
        expected = function(*given)
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        program = recorder.finish((), inputs, expected)
    unknown = {call.operator for call in program.calls if not is_lowered(call.operator)}
    assert not unknown
    constants = {value: tensor.detach().numpy() for value, tensor in program.constants.items()}
    with jax.numpy_dtype_promotion("standard"):
        found = replay(
            program, [], [jax.numpy.asarray(a) for a in arrays], constants, jax.random.key(0)
        )
    for one, two in zip(expected, found, strict=True):
        assert tuple(one.shape) == two.shape
        np.testing.assert_allclose(
            np.asarray(two, np.complex64 if one.is_complex() else np.float64),
            one.numpy().astype(np.complex64 if one.is_complex() else np.float64),
            rtol=tolerance,
            atol=tolerance,
        )
    return {call.operator for call in program.calls}


def test_there_are_at_least_140() -> None:
    aten = {name for name in LOWERINGS if not name.startswith(("anyinit.", "transformers."))}
    existing = {name for name in aten if _exists(name)}
    assert len(existing) >= 140


def _exists(name: str) -> bool:
    packet, _, overload = name.rpartition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and overload in found.overloads()


UNARY = """abs acos asin atan acosh asinh atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac log
    log10 log1p log2 neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan tanh
    trunc digamma lgamma isfinite isnan logical_not deg2rad positive sgn""".split()

ACTIVATIONS = """celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid
    mish relu6 selu silu softplus softshrink softsign tanhshrink threshold""".split()

BINARY = """add sub mul div maximum minimum atan2 fmod remainder floor_divide pow hypot fmax fmin
    logaddexp logaddexp2
    eq ne lt le gt ge xlogy logical_and logical_or logical_xor""".split()


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x = torch.rand(3, 4) * 0.9 + (1.05 if name == "acosh" else 0.05)
    compare(getattr(torch, name), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    options = {"threshold": (0.1, 20.0)}.get(name, ())
    compare(lambda x: getattr(F, name)(x, *options), randn(3, 4))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    x, y = torch.rand(3, 4) + 0.5, torch.rand(4) + 0.5
    compare(getattr(torch, name), x, y)
    if name not in (
        "maximum",
        "minimum",
        "atan2",
        "fmax",
        "fmin",
        "hypot",
        "logaddexp",
        "logaddexp2",
        "logical_and",
        "logical_or",
        "logical_xor",
    ):
        compare(lambda x: getattr(torch, name)(x, 2), x)
        compare(lambda x: getattr(torch, name)(x, 0.75), x)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=3), (randn(3, 4), randn(4))),
    "rsub": (lambda x: 3.0 - x, (randn(3),)),
    "reversed_power": (lambda x: 2.0**x, (randn(3),)),
    "roots": (lambda x: x**0.5 + x**-0.5 + x**2 + x**-1 + x**1.5, (torch.rand(5) + 0.5,)),
    "div_floor": (lambda x: torch.div(x, 2, rounding_mode="floor"), (randn(5),)),
    "div_trunc": (lambda x: torch.div(x, 2, rounding_mode="trunc"), (randn(5),)),
    "integer_division": (lambda x: (x // 3, x % 3, x / 3), (torch.arange(7),)),
    "bitwise": (lambda x: (x & 3, x | 8, x ^ 5, ~x, x << 1, x >> 1), (torch.arange(7),)),
    "bool_product": (lambda x: ((x > 0) * (x < 1), (x > 0) + (x < -1)), (randn(9),)),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), (randn(3, 4),)),
    "where_scalar": (lambda x: torch.where(x > 0, x, 0.0), (randn(3, 4),)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), (randn(3, 4),)),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp_max(0.1)), (randn(9),)),
    "lerp": (lambda x, y: (torch.lerp(x, y, 0.3), x.addcmul(x, y, value=2)), (randn(4), randn(4))),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.5), (randn(4), torch.rand(4) + 1)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (randn(9),)),
    "prelu": (lambda x, w: F.prelu(x, w), (randn(2, 3, 4), torch.rand(3))),
    "logit": (lambda x: torch.logit(x, 1e-3), (torch.rand(9),)),
    "to": (lambda x: (x.to(torch.float64), x.int(), x.bool()), (randn(9),)),
    "views": (
        lambda x: (x.view(4, 6), x.reshape(-1), x.flatten(1), x.unflatten(2, (2, 2))),
        (randn(2, 3, 4),),
    ),
    "axes": (
        lambda x: (x.permute(2, 0, 1), x.transpose(-1, -2), x.movedim(0, -1), x.mT, x[0].T),
        (randn(2, 3, 4),),
    ),
    "sizes_of_one": (lambda x: (x.unsqueeze(0).squeeze(), x[None].squeeze(0)), (randn(2, 3),)),
    "expand": (lambda x: (x.expand(4, 3), x.broadcast_to(2, 4, 3)), (randn(1, 3),)),
    "repeat": (
        lambda x: (x.repeat(2, 3), x.repeat(2, 1, 3), x.repeat_interleave(2, 0), x.tile(2)),
        (randn(2, 3),),
    ),
    "join": (
        lambda x, y: (torch.cat([x, y], -1), torch.stack([x, y], 1), torch.hstack([x, y])),
        (randn(2, 3), randn(2, 3)),
    ),
    "split": (
        lambda x: (*x.split(2, 1), *x.split([1, 4], 1), *x.chunk(3, 1), *x.unbind(0)),
        (randn(2, 5),),
    ),
    "pick": (
        lambda x: (x[:, 1:3], x[..., -1], x[::2], x.narrow(1, 1, 2), x.select(0, 1)),
        (randn(3, 5),),
    ),
    "flip": (
        lambda x: (x.flip(1), x.roll(2, 1), x.roll(1), x.roll((1, 1), (0, 1))),
        (randn(3, 5),),
    ),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 0), value=3.0)), (randn(2, 3, 5),)),
    "pad_edges": (
        lambda x: (F.pad(x, (1, 2), mode="reflect"), F.pad(x, (2, 1), mode="replicate")),
        (randn(2, 3, 5),),
    ),
    "unfold": (lambda x: x.unfold(1, 3, 2), (randn(2, 9),)),
    "im2col": (lambda x: F.unfold(x, 3, padding=1, stride=2), (randn(2, 3, 8, 8),)),
    "shuffle": (
        lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)),
        (randn(2, 8, 3, 3),),
    ),
    "diagonals": (lambda x: (x.diagonal(), x.tril(), x.triu(1), x.tril(-1)), (randn(4, 4),)),
    "strided": (lambda x: x.as_strided((2, 2), (3, 1), 1), (randn(3, 3),)),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j), (randn(3, 2),)),
    "sums": (
        lambda x: (x.sum(), x.sum(1), x.mean((0, 2), keepdim=True), x.prod(1)),
        (randn(2, 3, 4),),
    ),
    "extremes": (
        lambda x: (x.amax(1), x.amin(), x.max(), *x.max(1), *x.min(-1), x.argmax(1)),
        (randn(3, 4),),
    ),
    "truths": (
        lambda x: ((x > 0).any(), (x > 0).all(1), (x > 0).any(1, keepdim=True)),
        (randn(3, 4),),
    ),
    "variances": (
        lambda x: (
            x.var(),
            x.var(1),
            x.std(1, unbiased=False),
            *torch.var_mean(x, 1),
            x.var(1, correction=0),
        ),
        (randn(3, 5),),
    ),
    "norms": (
        lambda x: (
            x.norm(),
            x.norm(dim=1),
            torch.linalg.vector_norm(x, 1, 1),
            x.norm(p=float("inf"), dim=1),
            F.normalize(x),
        ),
        (randn(3, 4),),
    ),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0), x.logsumexp(1)), (randn(3, 4),)),
    "cumulative": (lambda x: (x.cumsum(1), x.cumprod(0)), (randn(3, 4),)),
    "order": (lambda x: (*x.topk(2), *x.sort(descending=True), x.argsort()), (randn(3, 6),)),
    "smallest": (lambda x: x.topk(2, largest=False)[0], (randn(3, 6),)),
    "losses": (
        lambda x, y: (F.mse_loss(x, y), F.cross_entropy(x, torch.tensor([1, 0, 2]))),
        (randn(3, 4), randn(3, 4)),
    ),
    "counts": (lambda x: torch.bincount(x, minlength=5), (torch.tensor([0, 2, 2, 4]),)),
    "linear": (F.linear, (randn(2, 3, 4), randn(5, 4), randn(5))),
    "products": (
        lambda x, y: (x @ y, torch.mm(x, y), torch.einsum("ij,jk->ki", x, y)),
        (randn(3, 4), randn(4, 5)),
    ),
    "vectors": (lambda x, y: (x @ y, torch.outer(x, y), torch.dot(x, y)), (randn(4), randn(4))),
    "batched": (
        lambda x, y: (torch.bmm(x, y), torch.baddbmm(x @ y, x, y, beta=2, alpha=3)),
        (randn(2, 3, 4), randn(2, 4, 5)),
    ),
    "addmm": (
        lambda b, x, y: (torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5, alpha=2)),
        (randn(5), randn(3, 4), randn(4, 5)),
    ),
    "bilinear": (F.bilinear, (randn(3, 4), randn(3, 5), randn(6, 4, 5), randn(6))),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 2), (randn(2, 3, 4), randn(3, 4, 5))),
    "distances": (
        lambda x, y: (torch.cdist(x, y), F.cosine_similarity(x, x + 1)),
        (randn(3, 4), randn(5, 4)),
    ),
    "attention": (F.scaled_dot_product_attention, tuple(randn(2, 4, 6, 8) for _ in range(3))),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        tuple(randn(2, 4, 6, 8) for _ in range(3)),
    ),
    "masked": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool).tril(), scale=0.3
        ),
        tuple(randn(2, 4, 6, 8) for _ in range(3)),
    ),
    "grouped_heads": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (randn(2, 4, 6, 8), randn(2, 2, 6, 8)),
    ),
    "conv1d": (
        lambda x, w: F.conv1d(x, w, stride=2, padding=1, groups=2),
        (randn(2, 4, 9), randn(6, 2, 3)),
    ),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, padding="same", dilation=2),
        (randn(2, 4, 9, 9), randn(6, 4, 3, 3), randn(6)),
    ),
    "conv3d": (F.conv3d, (randn(1, 2, 5, 5, 5), randn(3, 2, 2, 2, 2))),
    "conv_transpose1d": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1),
        (randn(2, 4, 5), randn(4, 3, 3)),
    ),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2),
        (randn(2, 4, 5, 5), randn(4, 3, 3, 3)),
    ),
    "max_pool": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool1d(x[0], 2)), (randn(2, 3, 9, 9),)),
    "max_pool_ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (randn(2, 3, 7, 7),)),
    "avg_pool": (lambda x: (F.avg_pool2d(x, 2), F.avg_pool1d(x[0], 3, 2)), (randn(2, 3, 9, 9),)),
    "adaptive_pool": (
        lambda x: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (3, 4)),
            F.adaptive_max_pool2d(x, 2),
        ),
        (randn(2, 3, 8, 8),),
    ),
    "nearest": (
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 3))),
        (randn(2, 3, 5, 5),),
    ),
    "interpolate": (
        lambda x: (
            F.interpolate(x, size=(7, 9), mode="bilinear"),
            F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
        ),
        (randn(2, 3, 5, 5),),
    ),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (randn(3, 4), randn(4), randn(4))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-5), (randn(3, 4), randn(4))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (randn(3, 4, 5), randn(4), randn(4))),
    "instance_norm": (F.instance_norm, (randn(3, 4, 5),)),
    "batch_norm": (
        lambda x, m: (F.batch_norm(x, None, None, training=True), F.batch_norm(x, m, m.abs() + 1)),
        (randn(8, 4), randn(4)),
    ),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), (randn(3, 4), randn(3, 1))),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 3], [0, 2]]), w), (randn(5, 4),)),
    "embedding_bag": (
        lambda w: F.embedding_bag(torch.tensor([[1, 3], [0, 2]]), w, mode="sum"),
        (randn(5, 4),),
    ),
    "index": (
        lambda x: (
            x[torch.tensor([2, 0])],
            x[:, torch.tensor([1, 1])],
            x[torch.tensor([0, 1]), torch.tensor([1, 2])],
            x[x[:, 0] > -9],
        ),
        (randn(3, 4),),
    ),
    "gather": (
        lambda x: (
            x.gather(1, torch.tensor([[1], [0], [3]])),
            x.index_select(1, torch.tensor([0, 2])),
        ),
        (randn(3, 4),),
    ),
    "take_along_dim": (
        lambda x: (
            torch.take_along_dim(x, torch.tensor([[1], [0], [3]]), 1),
            torch.take_along_dim(x, torch.tensor([[2], [0]]), 0),
            torch.take_along_dim(x, torch.tensor([[[1, 0, 0, 2]]])),
        ),
        (randn(3, 4),),
    ),
    "scatter": (
        lambda x: (
            x.scatter(1, torch.tensor([[1], [0], [3]]), 9.0),
            x.scatter_add(1, torch.tensor([[1], [0], [3]]), x),
            x.index_add(0, torch.tensor([0, 0]), x[:2]),
            x.index_copy(0, torch.tensor([2]), x[:1]),
        ),
        (randn(3, 4),),
    ),
    "index_put": (
        lambda x: (
            x.index_put((torch.tensor([0]),), torch.tensor(5.0)),
            x.masked_scatter(x > 0, x.flatten() * 2),
        ),
        (randn(3, 4),),
    ),
    "places": (
        lambda x: (x.nonzero(), x.masked_select(x > 0), *torch.where(x > 0)),
        (torch.tensor([0.0, 2.0, 1.0, 0.0]),),
    ),
    "one_hot": (lambda x: F.one_hot(x, 5), (torch.tensor([[1, 4], [0, 2]]),)),
    "made": (
        lambda x: (
            x + torch.arange(4),
            x + torch.arange(1, 9, 2),
            torch.zeros_like(x) + x,
            x.new_full((3,), 2.0),
            x + torch.linspace(0, 1, 4),
            x * torch.eye(4),
            torch.ones(4) * x,
            torch.full((4,), 3.0) + x,
        ),
        (randn(4),),
    ),
    "fourier": (
        lambda x: (
            torch.fft.rfft(x),
            torch.fft.irfft(torch.fft.rfft(x)),
            torch.fft.fft(x),
            torch.fft.fft2(x, norm="ortho").real,
        ),
        (randn(4, 8),),
    ),
    "cells": (
        lambda x, h, w, u: (torch.gru_cell(x, h, w, u), torch.rnn_tanh_cell(x, h, w[:5], u[:5])),
        (randn(2, 4), randn(2, 5), randn(15, 4), randn(15, 5)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    function, tensors = CASES[name]
    compare(function, *tensors)


TWO_WAYS = {"num_layers": 2, "bidirectional": True, "batch_first": True}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, options) for kind in ("LSTM", "GRU", "RNN") for options in ({}, TWO_WAYS)),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
        ("LSTM", {"proj_size": 2}),
        ("LSTM", TWO_WAYS | {"proj_size": 3, "bias": False}),
    ],
)
def test_recurrent_layers(kind: str, options: dict[str, Any]) -> None:
    layer = getattr(torch.nn, kind)(4, 5, **options)
    used = compare(lambda x: jax.tree.leaves(layer(x)), randn(3, 6, 4))
    assert not any(name.startswith(("mm", "addmm", "linear")) for name in used)


def written_through_a_slice(x: Any) -> Any:
    y = torch.zeros(3, 4)
    y[:, 1:3] = x[:, :2]
    y[0] += 1
    y[:, ::2] *= 2
    return y


def written_through_views(x: Any) -> Any:
    y = x.clone()
    view = y.view(4, 3).t()
    view[1].mul_(3)
    y.t()[0] = 7
    return y, view, y.sum()


def written_to_the_base(x: Any) -> Any:
    y = x.clone()
    row, column = y[1], y[:, 1]
    y.add_(1)
    row.zero_()
    return row, column, y


def reshaped_in_place(x: Any) -> Any:
    y = x.clone()
    y.unsqueeze_(0).transpose_(1, 2)
    y.exp_().clamp_(max=2.0)
    return y


def written_out(x: Any) -> Any:
    out = torch.empty(3, 4)
    torch.mul(x, 2, out=out)
    torch.add(out, 1, out=out)
    return out


def written_in_pieces(x: Any) -> Any:
    y = x.clone()
    first, second = y.chunk(2, 1)
    first.copy_(second * 2)
    y.unbind(0)[2].fill_(4.0)
    y.diagonal().zero_()
    return y, first


def filled_in_place(x: Any) -> Any:
    y = x.clone()
    y.masked_fill_(y > 0.5, 0).index_add_(0, torch.tensor([1]), x[:1])
    y[y < -0.5] = -1.0
    y.scatter_(1, torch.tensor([[0], [1], [2]]), 5.0)
    return y


@pytest.mark.parametrize(
    "function",
    [
        written_through_a_slice,
        written_through_views,
        written_to_the_base,
        reshaped_in_place,
        written_out,
        written_in_pieces,
        filled_in_place,
    ],
)
def test_writes_are_seen_through_every_view(function: Callable[..., Any]) -> None:
    compare(function, randn(3, 4))


def test_random_operators_have_the_moments_of_torchs() -> None:
    def draw(x: Any) -> Any:
        y = torch.empty_like(x)
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            F.dropout(torch.ones_like(x), 0.25),
            torch.bernoulli(torch.full_like(x, 0.3)),
            y.clone().uniform_(-1, 3),
            y.clone().normal_(1, 2),
            torch.randint(0, 10, (20_000,)).float(),
        )

    recorder = Recorder(is_lowered, lambda tensor: None)
    x = torch.zeros(20_000)
    inputs = (recorder.enter(specification(x), [x]),)
    with torch.inference_mode(), recorder:
        expected = draw(x)
        program = recorder.finish((), inputs, list(expected))
    with jax.numpy_dtype_promotion("standard"):
        found = replay(program, [], [jax.numpy.zeros(20_000)], {}, jax.random.key(0))
    for one, two in zip(expected, found, strict=True):
        assert float(two.mean()) == pytest.approx(float(one.mean()), abs=0.12)
        assert float(two.std()) == pytest.approx(float(one.std()), rel=0.05)
