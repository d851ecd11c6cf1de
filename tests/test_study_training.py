"""The study's trainer: loss, gradients, steps, and the networks before training."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anyinit
import anyinit.flax

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.initial_loss import measure
from experiments.study import devices, loss, shapes, step
from experiments.study.initialization import initial_params
from experiments.study.optimizer import optimizer, schedule
from experiments.study.page import INITIAL_LOSS
from experiments.study.presets import PRESETS
from experiments.study.protocol import PAGE_ROWS, SCHEMES, scheme
from experiments.study.runs import Run
from experiments.study.shapes import plan_of, shape_of, traced
from experiments.study.train import starting_state, train

# Flax's layers and optax's Adam promote bfloat16, integers and floats.
pytestmark = pytest.mark.standard_promotion

PROTOCOL = PRESETS["smoke"].protocol
TEXT = np.random.default_rng(0).integers(0, PROTOCOL.vocab, 4_000, dtype=np.int32)


def one_device() -> Any:
    return devices.mesh_of(1, PROTOCOL.batch)


def drawn(name: str, width: int = 32, seed: int = 0) -> Any:
    row = scheme(name)
    return initial_params(shape_of(PROTOCOL, row, width), row, seed, one_device())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_loss_and_its_gradients_are_those_of_whole_logits(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    hidden, table = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((24, 8), (30, 8)))
    targets = jnp.asarray(rng.integers(0, 30, 24))

    def whole(hidden: jax.Array, table: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, targets)
        return 3 * losses.mean()

    def blocks(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return 3 * loss.cross_entropy(hidden.astype(dtype), table, targets)

    monkeypatch.setattr(loss, "BLOCK_ON_CPU", 30 * 7)
    assert loss.rows_per_block(24, 30) == 6
    expected = jax.value_and_grad(whole, (0, 1))(hidden, table)
    found = jax.value_and_grad(blocks, (0, 1))(hidden, table)
    exact = dtype == jnp.float32
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if exact else 0.02, atol=1e-6 if exact else 0.01)
    np.testing.assert_allclose(blocks(hidden, table), expected[0], rtol=1e-6 if exact else 0.01)


def test_loss_of_very_large_logits_is_finite() -> None:
    hidden = jnp.array([[300.0], [-300.0], [0.0]])
    table = jnp.array([[1.0], [-1.0]])
    targets = jnp.array([0, 0, 1])
    value, gradients = jax.value_and_grad(loss.cross_entropy, (0, 1))(hidden, table, targets)
    assert float(value) == pytest.approx((0 + 600 + math.log(2)) / 3)
    assert all(bool(jnp.isfinite(g).all()) for g in gradients)


@pytest.mark.parametrize("name", ["C", "E"])
def test_gradients_are_those_of_the_model_itself(name: str) -> None:
    numbers, params = traced(scheme(name), 32), drawn(name)
    model = shape_of(PROTOCOL, scheme(name), 32).model(numbers.lookup, numbers.logits)
    batch, targets = step.random_windows(jax.random.key(1), jnp.asarray(TEXT), 3, PROTOCOL.window)

    def plain(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    expected, gradients = jax.jit(jax.value_and_grad(plain))(params)
    found, *parts = jax.jit(functools.partial(step.loss_and_gradients, model))(
        params, batch, targets
    )
    ours, _ = step.summed(*parts)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, gradients)


def test_attention_sees_only_its_own_window_and_the_past() -> None:
    model = shape_of(PROTOCOL, scheme("C"), 32).model()
    params = drawn("C")
    tokens = jnp.asarray(TEXT[: 2 * PROTOCOL.window].reshape(2, PROTOCOL.window))
    before = model.apply({"params": params}, tokens)
    after = model.apply({"params": params}, tokens.at[1, 5].add(1))
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1, :5], after[1, :5])
    assert not np.allclose(before[1, 5:], after[1, 5:])


@pytest.mark.parametrize("name", ["A", "C", "D", "D′"])
def test_first_step_moves_the_table_by_its_own_rate(name: str) -> None:
    width, rate = 32, 1e-3
    mesh, run = one_device(), Run(scheme(name), width, rate, 0)
    setting = step.Setting(shape_of(PROTOCOL, run.scheme, width), PROTOCOL, mesh)
    before = jax.tree.map(np.array, drawn(name))
    state, numbers = starting_state(setting, [run])
    text = devices.replicate(TEXT, mesh)
    after, _ = step.steps(setting, 1, len(TEXT)).call(state, numbers, text, np.int32(0))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.params, before)
    first = rate / PROTOCOL.warmup  # Adam's first step is the rate itself
    m = math.sqrt(width) if name == "D′" else 1.0
    assert moved["table"]["embedding"] == pytest.approx(m * first, rel=0.02)
    assert moved["blocks_0"]["qkv"]["kernel"] == pytest.approx(first, rel=0.02)


def test_d_prime_steps_as_the_librarys_partition_does() -> None:
    width, rate, row = 32, 1e-2, scheme("D′")
    shape, numbers = shape_of(PROTOCOL, row, width), traced(row, width, rate)
    plan = anyinit.flax.plan(shape.model(logits=width**-0.5), jnp.zeros((1, 8), jnp.int32))
    params = drawn("D′")
    gradients = jax.tree.map(lambda leaf: 1e-3 * jnp.cos(leaf), params)
    library = optax.chain(
        optax.clip_by_global_norm(1.0),
        anyinit.optax_partition(
            params,
            plan=plan,
            learning_rate=lambda count: rate * schedule(PROTOCOL, count),
            b1=0.9,
            b2=0.95,
            weight_decay=0.0,
        ),
    )
    updates = []
    for each in (library, optimizer(PROTOCOL, plan_of(shape), params, numbers)):
        state, update = each.init(params), jax.jit(each.update)
        for _ in range(3):
            moved, state = update(gradients, state, params)
        updates.append(moved)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *updates)


def test_warm_up_and_cosine_are_the_pages() -> None:
    protocol = PRESETS["full"].protocol
    for index in (0, 20, 49, 50, 400, 799):
        decay = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * index / 800))
        expected = min(1, (index + 1) / 50) * decay
        assert float(schedule(protocol, index)) == pytest.approx(expected, rel=1e-5)


def test_runs_side_by_side_are_those_one_by_one() -> None:
    mesh = one_device()
    runs = [Run(scheme(n), 32, 1e-2, seed) for n, seed in (("A", 0), ("C", 1), ("D′", 0))]
    text = devices.replicate(TEXT, mesh)
    alone = [train(PROTOCOL, [run], mesh, 1, text, text)[0] for run in runs]
    heard: list[int] = []
    together = train(PROTOCOL, runs, mesh, 4, text, text, heard.append)  # the last one twice
    assert len(together) == 3
    assert sum(heard) == 3 * PROTOCOL.steps
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4)
        np.testing.assert_allclose(one.ratios, other.ratios, rtol=1e-3)
        assert other.validation_loss == pytest.approx(one.validation_loss, rel=1e-4)


@pytest.mark.parametrize("at_once", [1, 2])
def test_bfloat16_as_on_accelerators(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, run = one_device(), Run(scheme("D′"), 32, 1e-2, 0)
    text = devices.replicate(TEXT, mesh)
    exact = train(PROTOCOL, [run], mesh, 1, text, text)[0]
    monkeypatch.setattr(shapes, "matrix_dtype", lambda: jnp.bfloat16)
    setting = step.Setting(shape_of(PROTOCOL, run.scheme, 32), PROTOCOL, mesh)
    state, _ = starting_state(setting, [run])
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    found = train(PROTOCOL, [run], mesh, at_once, text, text)[0]
    assert not np.array_equal(found.losses, exact.losses)
    np.testing.assert_allclose(found.losses, exact.losses, rtol=0.02)


def test_memory_of_the_state_is_reused() -> None:
    setting = step.Setting(shape_of(PROTOCOL, scheme("C"), 32), PROTOCOL, one_device())
    state, numbers = starting_state(setting, [Run(scheme("C"), 32, 1e-2, 0)])
    text = devices.replicate(TEXT, setting.mesh)
    step.steps(setting, 1, len(TEXT)).call(state, numbers, text, np.int32(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_schemes_share_the_rest_of_the_network() -> None:
    networks = {name: drawn(name) for name in PAGE_ROWS}
    for params in networks.values():
        for part in ("blocks_0", "norm"):
            jax.tree.map(np.testing.assert_array_equal, params[part], networks["A"][part])
    stds = {name: float(params["table"]["embedding"].std()) for name, params in networks.items()}
    expected = {"A": 1.0, "B": 0.02, "C": 32**-0.5, "D": 1.0, "D′": 1.0, "F": 32**-0.5, "E": 1.0}
    assert stds == pytest.approx(expected, rel=0.02)
    assert float(networks["E"]["head"].std()) == pytest.approx(32**-0.5, rel=0.02)


@pytest.mark.parametrize("name", [n for n, row in SCHEMES.items() if row.library])
def test_the_library_gives_the_table_the_scale_of_the_scheme(name: str) -> None:
    table = drawn(name, 64)["table"]["embedding"]
    expected = 1.0 if name in ("AnyInit-D", "AnyInit-E") else 1 / 8
    assert float(jnp.sqrt(jnp.mean(table**2))) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", PAGE_ROWS)
def test_initial_loss_at_the_vocabulary_of_the_page(name: str) -> None:
    assert measure(name, 128).loss == pytest.approx(INITIAL_LOSS[name][0], rel=0.03)


def test_the_full_preset_is_the_pages() -> None:
    full = PRESETS["full"]
    fixed = {"vocab": 33_527, "layers": 4, "window": 128, "batch": 32, "steps": 800, "warmup": 50}
    assert fixed.items() <= dataclasses.asdict(full.protocol).items()
    assert (full.seeds, full.widths) == ((0, 1), (128, 512))
    usual = (3e-4, 1e-3, 3e-3, 1e-2)
    for width in full.widths:
        rates = {name: full.grid.of(scheme(name), width) for name in PAGE_ROWS}
        assert rates["A"] == (*usual, 3e-2)
        assert rates["D"] == ((*usual, 3e-2) if width == 128 else usual)
        assert rates["D′"] == usual[:3]
        assert rates["C"] == rates["E"] == usual
