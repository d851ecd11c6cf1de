"""Small models after real ones, each with a fault of its kind."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import (
    assert_complete,
    flat,
    initialized,
    keys,
    moment,
    normal,
    only_row,
    rms,
    rows,
    run,
)
from models import LENGTH, VOCAB, Net, TiedLM

import anyinit.flax

IDX = jnp.zeros((8, LENGTH), jnp.int32)
WIDE = 3072


def rounded_root(x: jax.Array, d: int) -> jax.Array:
    """Gemma's multiplier: √3072 = 55.43 is 55.5 in bfloat16."""
    return x * jnp.asarray(jnp.sqrt(jnp.float32(d)), jnp.bfloat16).astype(x.dtype)


def test_lookup_multiplier_rounded_to_bfloat16() -> None:
    untied = TiedLM(WIDE, lookup=rounded_root, read="untied")
    row = only_row(anyinit.flax.plan(untied, IDX), "emb")
    assert row.c == pytest.approx(55.5, rel=1e-4)
    assert row.c == pytest.approx(math.sqrt(WIDE), rel=0.01)
    assert row.sigma == pytest.approx(1 / 55.5, rel=0.002)
    assert row.m == pytest.approx(1 / 55.5, rel=1e-4)
    tied = only_row(anyinit.flax.plan(TiedLM(WIDE, lookup=rounded_root), IDX), "emb")
    assert tied.sigma == pytest.approx(WIDE**-0.5, rel=0.01)
    assert tied.arrival == pytest.approx(55.5**2 / WIDE, rel=0.01)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("d", [64, 200, 2048])
def test_multiplier_within_a_bfloat16_model(d: int) -> None:
    model = TiedLM(
        d,
        lookup=lambda x, d: x * jnp.array(d**0.5, x.dtype),
        read="untied",
        dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16,
    )
    row = only_row(anyinit.flax.plan(model, IDX), "emb")
    assert row.c == pytest.approx(d**0.5, rel=0.01)
    assert row.sigma == pytest.approx(d**-0.5, rel=0.01)


@pytest.mark.parametrize("shape", [(4096, 512), (3, 200_000), (1_000_000, 2)])
def test_scale_of_a_bfloat16_leaf_is_computed_in_float32(shape: tuple[int, int]) -> None:
    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        init = nn.initializers.normal(0.02)
        kernel = net.param("kernel", init, shape, jnp.bfloat16)
        return x @ kernel.astype(jnp.float32)

    # A sum of squares in bfloat16 stops growing after some hundred terms.
    plan, variables = initialized(Net(body), 0, jnp.zeros((1, shape[0])))
    kernel = variables["params"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    assert rms(kernel) == pytest.approx(only_row(plan, "kernel").sigma, rel=1e-3)


def test_kernel_of_odd_axes_whose_initializer_reads_the_wrong_ones() -> None:
    d, heads, head_dim = 256, 8, 32

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        kernel = net.param("kernel", nn.initializers.lecun_normal(), (d, heads, head_dim))
        q = jnp.einsum("bd,dhk->bhk", x, kernel)
        net.sow("intermediates", "q", q)
        return nn.Dense(d, name="last")(nn.relu(q).reshape(x.shape[0], -1))

    before = Net(body).init(keys(0), jnp.zeros((4, d)))
    fault = rms(before["params"]["kernel"]) * math.sqrt(d)
    assert fault == pytest.approx(heads**-0.5, rel=0.02)
    plan, variables = initialized(Net(body), 0, jnp.zeros((4, d)))
    assert rows(plan)["kernel"].fan == d
    _, captured = run(Net(body), variables, normal(1, (64, d)))
    assert moment(captured["q"]) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("heads", [2, 8])
def test_dense_general_with_lecun_normal(heads: int) -> None:
    layer = nn.DenseGeneral((heads, 256 // heads), kernel_init=nn.initializers.lecun_normal())
    _, variables = initialized(layer, 0, jnp.zeros((4, 256)))
    assert variables["params"]["kernel"].shape == (256, heads, 256 // heads)
    output, _ = run(layer, variables, normal(1, (64, 256)))
    assert moment(output) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("axes", [("bd,hdk->bhk", (8, 256, 32)), ("bd,hkd->bhk", (8, 32, 256))])
@pytest.mark.parametrize("name", ["lecun_normal", "xavier_uniform", "he_normal", "orthogonal"])
def test_projections_of_other_axis_orders(name: str, axes: tuple[str, Any]) -> None:
    spelled, shape = axes

    def body(net: nn.Module, x: jax.Array) -> jax.Array:
        kernel = net.param("kernel", getattr(nn.initializers, name)(), shape)
        return jnp.einsum(spelled, x, kernel)

    plan, variables = initialized(Net(body), 0, jnp.zeros((4, 256)))
    assert only_row(plan, "kernel").fan == 256
    output, _ = run(Net(body), variables, normal(1, (64, 256)))
    assert moment(output) == pytest.approx(1, abs=0.1)


INITIALIZERS = {
    "normal": nn.initializers.normal(1.0),
    "truncated": nn.initializers.truncated_normal(0.02),
    "truncated_hard": nn.initializers.truncated_normal(1.0, lower=-0.5, upper=0.5),
    "uniform": nn.initializers.uniform(3.0),
    "lecun_normal": nn.initializers.lecun_normal(),
    "lecun_uniform": nn.initializers.lecun_uniform(),
    "he_normal": nn.initializers.he_normal(),
    "he_uniform": nn.initializers.he_uniform(),
    "xavier_normal": nn.initializers.xavier_normal(),
    "xavier_uniform": nn.initializers.xavier_uniform(),
    "orthogonal": nn.initializers.orthogonal(),
    "variance_scaling": nn.initializers.variance_scaling(0.1, "fan_avg", "truncated_normal"),
    "own": lambda key, shape, dtype=jnp.float32: jax.random.laplace(key, shape, dtype),
    "signs": lambda key, shape, dtype=jnp.float32: jax.random.rademacher(key, shape, dtype),
    "shifted": lambda key, shape, dtype=jnp.float32: 1 + jax.random.normal(key, shape, dtype),
}


@pytest.mark.parametrize("name", list(INITIALIZERS))
def test_root_mean_square_is_the_plans_whoever_drew_the_leaf(name: str) -> None:
    init = INITIALIZERS[name]

    def body(net: nn.Module, idx: jax.Array) -> jax.Array:
        x = nn.Embed(300, 64, embedding_init=init)(idx)
        x = nn.relu(nn.Dense(128, kernel_init=init)(x))
        return nn.Dense(256, kernel_init=init)(nn.LayerNorm()(x))

    plan, variables = initialized(Net(body), 0, IDX)
    assert len(plan.weights) == 3
    for row in plan.weights:
        assert rms(flat(variables["params"])[row.path]) == pytest.approx(row.sigma, rel=1e-3)


def test_table_copied_by_value_into_an_output_kernel_is_two_leaves() -> None:
    model = TiedLM(64, 2, read="untied")
    plan, variables = anyinit.flax.plan(model, IDX), model.init(keys(0), IDX)
    table = variables["params"]["emb"]["embedding"]
    copied = {"params": variables["params"] | {"head": {"kernel": table.T}}}
    rescaled = plan.rescale(copied)
    assert_complete(plan, rescaled)
    emb, head = only_row(plan, "emb/embedding"), only_row(plan, "head/kernel")
    assert not emb.aliases
    assert not head.aliases
    assert rms(rescaled["params"]["emb"]["embedding"]) == pytest.approx(1, rel=0.01)
    assert rms(rescaled["params"]["head"]["kernel"]) == pytest.approx(1 / 8, rel=0.01)
    report = [line for line in str(plan).splitlines() if "emb/embedding" in line or "head" in line]
    assert len(report) >= 2


@pytest.mark.parametrize("mask", [False, True], ids=["padded", "padded_and_masked"])
def test_padded_vocabulary(mask: bool) -> None:
    padded = 2048
    mask_out = lambda x, d: jnp.where(jnp.arange(padded) < VOCAB, x, -1e9)  # noqa: E731
    fields: dict[str, Any] = {"after": mask_out} if mask else {}
    plan = anyinit.flax.plan(TiedLM(64, 2, vocab=padded, **fields), IDX)
    plain = anyinit.flax.plan(TiedLM(64, 2, vocab=VOCAB), IDX)
    assert only_row(plan, "emb").sigma == pytest.approx(only_row(plain, "emb").sigma, rel=1e-3)
    assert plan.vocabulary == padded
    assert plain.vocabulary == VOCAB
    assert plan.logits_moment == pytest.approx(1, rel=0.02)
    expected = math.log(padded) + plan.logits_moment / 2
    assert f"{expected:.2f}"[:3] in str(plan)


def test_padding_rows_of_zeros_do_not_count() -> None:
    def padded_rows(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.normal(key, shape, dtype).at[VOCAB:].set(0)

    model = TiedLM(64, 2, vocab=2 * VOCAB, embedding_init=padded_rows)
    plan, variables = initialized(model, 0, IDX)
    table = np.asarray(variables["params"]["emb"]["embedding"])
    assert not np.any(table[VOCAB:])
    assert np.sqrt(np.mean(table[:VOCAB] ** 2)) * 8 == pytest.approx(1, rel=0.01)
    assert plan.vocabulary == 2 * VOCAB
