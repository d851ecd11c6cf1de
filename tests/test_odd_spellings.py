"""The same computation in spellings that hide it: the plan is that of the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flat_run import measured
from measure import normal, only_row, others_moment, run, tokens
from models import Net

import anyinit.flax

V, D, T = 1000, 128, 16
S = D**-0.5
IDX = jnp.zeros((8, T), jnp.int32)
X = jnp.zeros((64, D))
SMALL, LECUN = nn.initializers.normal(0.02), nn.initializers.lecun_normal()

Body = Callable[[nn.Module, jax.Array], jax.Array]


def plan(body: Body, x: Any) -> Any:
    return anyinit.flax.plan(Net(body), x)


def head(x: jax.Array) -> jax.Array:
    return nn.Dense(V, use_bias=False, name="head")(x)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        return nn.relu(nn.Dense(D, use_bias=False)(h)), None


def scanned_along(axis: int) -> Body:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        layers = nn.scan(
            Layer, variable_axes={"params": axis}, split_rngs={"params": True}, length=4
        )
        return head(layers()(x, None)[0])

    return body


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_layers_stacked_along_any_axis(axis: int) -> None:
    variables = anyinit.flax.init(Net(scanned_along(axis)), jax.random.key(0), X)
    x = jax.random.normal(jax.random.key(1), X.shape)
    output, _ = run(Net(scanned_along(axis)), variables, x)
    assert float(jnp.mean(output**2)) == pytest.approx(1, abs=0.6)


def test_items_of_a_view_are_parts_of_one_weight() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        stack = net.param("stack", LECUN, (4, D, D))
        return head(jax.lax.scan(lambda h, w: (nn.relu(h @ w), None), 3 * x, stack[::-1])[0])

    assert isinstance(only_row(plan(body, X), "stack").sigma, float)


def test_constants_of_the_layers_of_a_scan_are_read_exactly() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        stack = net.param("stack", LECUN, (4, D, D))
        layers = (stack, jnp.arange(1.0, 5.0))
        return head(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w[0] * w[1]), None), x, layers)[0])

    sigma = np.array(only_row(plan(body, X), "stack").sigma)
    assert sigma[0] * D**0.5 == pytest.approx(1, rel=0.01)
    # E[tanh(z)²] of a unit normal z enters the later layers.
    assert sigma[1:] * np.sqrt(D * 0.394) * [2, 3, 4] == pytest.approx(np.ones(3), rel=0.05)


def position_bias(masked: bool) -> Body:
    """Attention scores with one bias by position for all layers, the mask added to it or not."""

    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(V, D, name="emb")(idx)
        distance = jnp.arange(T)[None, :] - jnp.arange(T)[:, None] + T
        bias = jnp.transpose(nn.Embed(2 * T, 2, name="bias")(distance), (2, 0, 1))[None]
        if masked:
            bias = bias + jnp.where(idx < 0, -1e9, 0.0)[:, None, None, :]
        for layer in range(3):
            h = nn.RMSNorm()(x)
            q, k, v = (
                nn.DenseGeneral((2, D // 2), use_bias=False, name=f"{name}{layer}")(h)
                for name in "qkv"
            )
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
            mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
            x = x + nn.DenseGeneral(D, (-2, -1), use_bias=False, name=f"o{layer}")(mixed)
        return head(nn.RMSNorm()(x))

    return body


def test_a_bias_of_scores_that_holds_the_mask_is_no_stream() -> None:
    plain, masked = (
        {row.path: row.sigma for row in plan(position_bias(b), IDX).weights} for b in (False, True)
    )
    assert plain.keys() == masked.keys()
    for path, sigma in plain.items():
        assert masked[path] == pytest.approx(sigma, rel=0.02), path


def readout_in_chunks(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb = nn.Embed(V, D, name="emb")
    h = nn.LayerNorm()(emb(idx))
    chunks = emb.embedding.reshape(4, 250, D)
    logits = jax.lax.map(lambda part: h @ part.T * S, chunks)
    return jnp.moveaxis(logits, 0, -2).reshape(*idx.shape, V)


def one_hot_positions(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb, table = nn.Embed(V, D, name="emb"), net.param("positions", SMALL, (T, D))
    positions = jax.nn.one_hot(jnp.arange(T), T) @ table
    return emb.attend(nn.LayerNorm()(emb(idx) + positions)) * S


def identity_positions(net: nn.Module, idx: jax.Array) -> jax.Array:
    emb, table = nn.Embed(V, D, name="emb"), net.param("positions", SMALL, (T, D))
    positions = np.eye(T, dtype=np.float32) @ table
    return emb.attend(nn.LayerNorm()(emb(idx) + positions)) * S


@pytest.mark.parametrize("body", [readout_in_chunks, one_hot_positions, identity_positions])
def test_tied_table_with_scaled_logits(body: Body) -> None:
    found = plan(body, IDX)
    row = only_row(found, "emb")
    assert row.roles == ("lookup", "readout")
    assert row.sigma == pytest.approx(1, rel=0.01)
    assert row.m == pytest.approx(D**0.5, rel=0.01)
    for positions in (row for row in found.weights if row.path == "positions"):
        assert positions.sigma == pytest.approx(1, rel=0.02)
    variables = found.rescale(Net(body).init(jax.random.key(0), IDX))
    idx = tokens(1, V, IDX.shape)
    assert others_moment(run(Net(body), variables, idx)[0], idx) == pytest.approx(1, abs=0.1)


CAPS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh_of_exponentials": lambda x: (
        30 * ((jnp.exp(x / 30) - jnp.exp(-x / 30)) / (jnp.exp(x / 30) + jnp.exp(-x / 30)))
    ),
    "one_exponential": lambda x: 25 * ((1 - jnp.exp(-2 * x / 25)) / (1 + jnp.exp(-2 * x / 25))),
}


@pytest.mark.parametrize("name", list(CAPS))
def test_soft_caps_that_overflow_far_out(name: str) -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(V, D)
        return CAPS[name](emb.attend(nn.LayerNorm()(emb(idx))))

    row = only_row(plan(body, IDX), "Embed")
    assert (row.site, row.c) == ("output", pytest.approx(1, rel=0.01))


def test_clipped_readout_is_still_a_readout() -> None:
    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        emb = nn.Embed(V, D)
        return jnp.clip(emb.attend(nn.LayerNorm()(emb(idx))) * S, -50, 50)

    params = anyinit.flax.init(Net(body), jax.random.key(0), IDX)
    assert anyinit.optax_labels(params)["params"]["Embed_0"]["embedding"] == "table"


def test_stream_kept_as_a_list() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        parts = [nn.Dense(D, use_bias=False, name="stem")(x)]
        for layer in range(4):
            h = nn.Dense(4 * D, use_bias=False)(nn.LayerNorm()(sum(parts)))
            parts.append(nn.Dense(D, use_bias=False, name=f"down{layer}")(nn.gelu(h)))
        return head(nn.LayerNorm()(sum(parts)))

    found = plan(body, X)
    targets = [row.target for row in found.weights if "down" in row.path]
    assert targets == pytest.approx([0.25] * 4, rel=0.01)


def test_norm_by_absolute_values() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = 3 * nn.Dense(D, use_bias=False, name="first")(x)
        return head(h / jnp.abs(h).mean(-1, keepdims=True))

    row = only_row(plan(body, X), "first")
    assert (row.site, row.c, row.m) == ("normalization", 1, 1)


@pytest.mark.parametrize("operation", ["inv", "solve_triangular"])
def test_linear_algebra_is_reported_and_keeps_the_moment(operation: str) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = nn.Dense(D, name="first")(x)
        matrix = jnp.eye(D) + net.param("matrix", SMALL, (D, D))
        if operation == "inv":
            return head(h @ jnp.linalg.inv(matrix))
        return head(jax.scipy.linalg.solve_triangular(matrix, h.T, lower=True).T)

    found = plan(body, X)
    assert any("has no rule" in finding.message for finding in found.findings)
    assert 0.1 < only_row(found, "head").sigma * D**0.5 < 10


@pytest.mark.parametrize("spelling", ["complex", "halves"])
def test_rotary_embeddings(spelling: str) -> None:
    """By complex numbers or by sines and cosines: scores are a product of two signals."""

    def rotated(x: jax.Array) -> jax.Array:
        frequencies = 10_000.0 ** (-jnp.arange(0.0, 1.0, 2.0 / D))
        angles = jnp.arange(T, dtype=jnp.float32)[:, None] * frequencies
        even, odd = x[..., 0::2], x[..., 1::2]
        if spelling == "complex":
            turn = jnp.exp(jax.lax.complex(jnp.zeros_like(angles), angles))
            turned = jax.lax.complex(even, odd) * turn
            even, odd = turned.real, turned.imag
        else:
            sin, cos = jnp.sin(angles), jnp.cos(angles)
            even, odd = even * cos - odd * sin, odd * cos + even * sin
        return jnp.stack([even, odd], axis=-1).reshape(x.shape)

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = x.reshape(4, T, D)
        q, k, v = (nn.Dense(D, use_bias=False, name=name)(x) for name in "qkv")
        scores = jnp.einsum("bqd,bkd->bqk", 0.5 * rotated(q), rotated(k)) / D**0.5
        return head(nn.softmax(scores) @ v)

    found = measured(Net(body), lambda seed: (normal(seed, X.shape),))
    for name in "qk":
        row = only_row(found.plan, f"{name}/kernel")
        assert (row.site, row.c, row.m) == ("product of two signals", 1, 1)
        assert row.sigma == pytest.approx(S, rel=0.03)
    assert found.difference < 1e-4
    assert all(site.ratio < 1.1 for site in found.sites), found.sites


def test_a_long_convolution_by_fourier_transforms() -> None:
    """Padded with zeros to twice the length, multiplied, and cut to the length again."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = x.reshape(4, T, D)
        kernel = net.param("kernel", nn.initializers.normal(1.0), (T, D))
        signal, filters = jnp.fft.rfft(x, 2 * T, axis=1), jnp.fft.rfft(kernel, 2 * T, axis=0)
        mixed = jnp.fft.irfft(signal * filters, 2 * T, axis=1)[:, :T]
        return nn.Dense(256, name="head")(nn.gelu(mixed))

    found = measured(Net(body), lambda seed: (normal(seed, X.shape),))
    assert found.outputs[0] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("start", [0.02, 1.0])
@pytest.mark.parametrize("spelling", ["called twice", "added in every layer"])
def test_a_tied_table_that_is_added_to_a_computed_signal(spelling: str, start: float) -> None:
    """Its scale comes from the logits, whatever else it is added to."""

    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        table = nn.Embed(V, D, embedding_init=nn.initializers.normal(start), name="table")
        x = tokens = table(idx)
        for _ in range(2):
            h = table(idx) if spelling == "called twice" else x
            x = x + nn.Dense(D)(nn.gelu(nn.Dense(4 * D)(nn.LayerNorm()(h))))
            if spelling != "called twice":
                x = x + tokens
        return table.attend(nn.LayerNorm()(x))

    row = only_row(plan(body, IDX), "table/embedding")
    assert row.sigma == pytest.approx(S, rel=0.01)
    assert "readout" in row.roles


def test_a_state_space_kernel_of_complex_exponentials() -> None:
    """The real part of a complex product has half of its second moment."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = x.reshape(4, T, D)
        parts = net.param("parts", nn.initializers.normal(1.0), (D, 16, 2))
        powers = jnp.arange(16.0)[:, None] * jnp.arange(float(T))
        states = jnp.exp(jax.lax.complex(-0.02 * powers, 0.3 * powers))
        kernel = (jax.lax.complex(parts[..., 0], parts[..., 1]) @ states).real
        signal, filters = jnp.fft.rfft(x, 2 * T, axis=1), jnp.fft.rfft(kernel.T, 2 * T, axis=0)
        return head(jnp.fft.irfft(signal * filters, 2 * T, axis=1))

    found = measured(Net(body), lambda seed: (normal(seed, X.shape),))
    assert found.outputs[0] == pytest.approx(1, abs=0.2)


def test_axes_of_equal_length_change_places_behind_an_activation() -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        x = nn.gelu(nn.Dense(D, use_bias=False)(x)).swapaxes(1, 2)
        return nn.Dense(V, use_bias=False, name="head")(x)

    found = measured(Net(body), lambda seed: (normal(seed, (4, D, 16)),))
    assert found.outputs[0] == pytest.approx(1, abs=0.1)
    assert found.plan.vocabulary == V


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_features_written_one_half_after_the_other(places: tuple[int, int]) -> None:
    """Zeros that are written to again do not count."""

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        h = jnp.zeros((x.shape[0], 2 * D))
        for place in places:
            h = h.at[:, place::2].set(nn.Dense(D, use_bias=False)(x))
        return head(h)

    found = measured(Net(body), lambda seed: (normal(seed, (64, D)),))
    assert found.outputs[0] == pytest.approx(1, abs=0.1)
