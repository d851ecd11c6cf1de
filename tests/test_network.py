"""The rest of the network: projections, residual branches, the stream, and deep MLPs."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import initialized, keys, moment, normal, only_row, rows, run, tokens
from models import LENGTH, VOCAB, Block, FusedBlock, ReluMLP, ResidualMLP, TiedLM
from passes import MAIN

import anyinit.flax

WIDTH, LAYERS, SEEDS = 256, 4, 16
ZEROS = jnp.zeros((8, LENGTH), jnp.int32)
BLOCKS = {"biases": Block, "fused": FusedBlock}

PROJECTIONS = {
    "biases": (
        "Block_{}/MultiHeadDotProductAttention_0/query/kernel",
        "Block_{}/MultiHeadDotProductAttention_0/key/kernel",
        "Block_{}/MultiHeadDotProductAttention_0/value/kernel",
        "Block_{}/Dense_0/kernel",
    ),
    "fused": ("FusedBlock_{}/qkv/kernel", "FusedBlock_{}/up/kernel"),
}
MIXED = {
    "biases": "Block_{}/MultiHeadDotProductAttention_0/out/kernel",
    "fused": "FusedBlock_{}/proj/kernel",
}
DOWN = {"biases": "Block_{}/Dense_1/kernel", "fused": "FusedBlock_{}/down/kernel"}


def gpt(kind: str, name: str = "C") -> TiedLM:
    return TiedLM(WIDTH, LAYERS, block=BLOCKS[kind], **MAIN[name].fields)


def gelu_moment() -> float:
    """E[gelu(z)²] of a unit normal z, by quadrature, in Flax's tanh form."""
    z = np.linspace(-10, 10, 20_001)
    gelu = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return float(np.trapezoid(gelu**2 * np.exp(-(z**2) / 2), z) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("name", ["C", "F", "D", "E"])
@pytest.mark.parametrize("kind", list(BLOCKS))
def test_scales_of_a_transformer(kind: str, name: str) -> None:
    planned = rows(anyinit.flax.plan(gpt(kind, name), ZEROS))
    for layer in range(LAYERS):
        for path in PROJECTIONS[kind]:
            row = planned[path.format(layer)]
            assert row.fan == WIDTH
            assert row.moment_in == pytest.approx(1, rel=0.03)
            assert row.sigma * math.sqrt(WIDTH) == pytest.approx(1, rel=0.03)
            assert row.c == row.m == 1
        for path, fan, moment_in in (
            (MIXED[kind], WIDTH, 1),
            (DOWN[kind], 4 * WIDTH, gelu_moment()),
        ):
            row = planned[path.format(layer)]
            assert row.fan == fan
            assert row.moment_in == pytest.approx(moment_in, rel=0.06)
            share = row.sigma * math.sqrt(row.fan * row.moment_in)
            assert share == pytest.approx(1 / math.sqrt(2 * LAYERS), rel=0.05)
            assert row.target == pytest.approx(1 / (2 * LAYERS), rel=0.03)
            assert row.m == 1


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_what_an_attention_average_feeds_is_an_upper_bound(kind: str) -> None:
    planned = rows(anyinit.flax.plan(gpt(kind), ZEROS))
    assert planned[MIXED[kind].format(0)].at_most
    assert not planned[PROJECTIONS[kind][0].format(0)].at_most


@pytest.mark.parametrize("name", list(MAIN))
@pytest.mark.parametrize("kind", list(BLOCKS))
def test_residual_stream_grows_by_one_at_most(kind: str, name: str) -> None:
    model = gpt(kind, name)
    _, variables = initialized(model, 0, ZEROS)
    _, captured = run(model, variables, tokens(1, VOCAB))
    last = captured[f"stream#{LAYERS - 1}"]
    start = moment(captured["arrival"])
    # The MLP branches alone bring half of the share of 1; a stream without them fails too.
    assert start + 0.4 < moment(last) < start + 1.2


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_pre_activations_of_a_transformer_as_measured(kind: str) -> None:
    model = gpt(kind)
    _, variables = initialized(model, 0, ZEROS)
    _, captured = run(model, variables, tokens(1, VOCAB))
    for layer in range(LAYERS):
        for path in PROJECTIONS[kind]:
            value = captured[path.format(layer).removesuffix("/kernel")]
            assert moment(value) == pytest.approx(1, abs=0.1)
        for path in (MIXED[kind], DOWN[kind]):
            value = captured[path.format(layer).removesuffix("/kernel")]
            assert moment(value) < 1.1 / (2 * LAYERS)
        assert moment(value) > 0.9 / (2 * LAYERS)


def mean_over_seeds(model: nn.Module, x: jax.Array) -> dict[str, float]:
    """Second moments of the output and of the last stream, averaged over seeds."""
    plan = anyinit.flax.plan(model, jnp.zeros_like(x))
    draw = jax.jit(lambda rngs: plan.rescale(model.init(rngs, x)))
    measured: dict[str, Any] = {"output": [], "stream": []}
    for seed in range(SEEDS):
        output, captured = run(model, draw(keys(seed)), x)
        streams = [value for path, value in captured.items() if path.startswith("stream")]
        measured["output"].append(moment(output))
        measured["stream"].append(moment(streams[-1]) if streams else 0.0)
    return {name: float(np.mean(values)) for name, values in measured.items()}


def test_thirty_relu_layers_end_near_one() -> None:
    measured = mean_over_seeds(ReluMLP(512, 30), normal(0, (16, 512)))
    assert 0.5 < measured["output"] < 2


def test_residual_mlp_without_norm_ends_near_one() -> None:
    measured = mean_over_seeds(ResidualMLP(512, 12), normal(0, (16, 512)))
    assert 0.5 < measured["output"] < 2
    assert 1.5 < measured["stream"] < 2.2


def test_branches_of_a_residual_mlp_share_the_stream() -> None:
    planned = anyinit.flax.plan(ResidualMLP(512, 12), jnp.zeros((16, 512)))
    for layer in range(12):
        stream_in = 1 + layer / 12
        up = only_row(planned, f"up{layer}/")
        assert up.sigma * math.sqrt(512 * stream_in) == pytest.approx(1, rel=0.03)
        down = only_row(planned, f"down{layer}/")
        # ReLU keeps half of the second moment of 1.
        assert down.sigma * math.sqrt(512 / 2 * 12) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("width", [128, 512])
def test_relu_layers_get_the_gain_of_two(width: int) -> None:
    planned = anyinit.flax.plan(ReluMLP(width, 5), jnp.zeros((16, width)))
    first, *others = [row.sigma * math.sqrt(width) for row in planned.weights]
    assert first == pytest.approx(1, rel=0.01)
    assert others == pytest.approx([math.sqrt(2)] * 4, rel=0.03)
