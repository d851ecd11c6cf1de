"""Architectures of many shapes: scales, shares and logits, planned and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import architectures as nets
import jax
import jax.numpy as jnp
import pytest
from architectures import HEADS, LAYERS, VOCAB, D
from measure import (
    initialized,
    moment,
    moments,
    normal,
    only_row,
    others_moment,
    rows,
    run,
    tokens,
)
from models import LENGTH, Net

import anyinit.flax

IDX = jnp.zeros((8, LENGTH), jnp.int32)
SEEDS = 2


def one_input(seed: int) -> tuple[jax.Array]:
    return (tokens(seed, VOCAB),)


def with_segments(seed: int) -> tuple[jax.Array, jax.Array]:
    return tokens(seed, VOCAB), tokens(seed + 50, 2)


def plan(body: Callable[..., Any], *args: Any) -> Any:
    return anyinit.flax.plan(Net(body), *(args or (IDX,)))


def assert_logits(body: Callable[..., Any], tolerance: float = 0.1) -> None:
    """Logits on fresh tokens, each position's own token left out, over seeds."""
    measured = []
    for seed in range(SEEDS):
        _, variables = initialized(Net(body), seed, IDX)
        (idx,) = one_input(seed + 1)
        output, _ = run(Net(body), variables, idx)
        logits = jax.tree.leaves(output)[0]
        measured.append(others_moment(logits, idx))
    assert sum(measured) / SEEDS == pytest.approx(1, abs=tolerance)


TRANSFORMERS = (
    nets.parallel_blocks,
    nets.parallel_blocks_grouped,
    nets.residual_on_the_right,
    nets.residual_as_a_sum_of_a_list,
)
UNTIED = (
    *TRANSFORMERS,
    nets.residual_dropout,
    nets.post_norm,
    nets.no_final_norm,
    nets.llama,
    nets.norm_after_the_lookup,
    nets.language_and_value,
)
TIED = (
    nets.sinusoids,
    nets.positions_before_the_multiplier,
    nets.factorized_table,
    nets.two_readouts,
    nets.summed_readouts,
    nets.split_readout,
    nets.logits_and_loss,
    nets.logits_and_z_loss,
)


@pytest.mark.parametrize("body", UNTIED + TIED, ids=lambda body: body.__name__)
def test_logits(body: Callable[..., Any]) -> None:
    assert_logits(body)


@pytest.mark.parametrize("body", UNTIED, ids=lambda body: body.__name__)
def test_untied_lookup_and_head(body: Callable[..., Any]) -> None:
    planned = plan(body)
    # Dropout on the lookup keeps 0.9 of its rows, whichever side of it is meant to be 1.
    dropped = 0.1 if body is nets.residual_dropout else 0
    assert (1 - dropped) ** 0.5 / 1.02 < only_row(planned, "emb").sigma < 1.02
    head = only_row(planned, "head")
    assert head.sigma * (D * head.moment_in) ** 0.5 == pytest.approx(1, rel=0.02)
    if body is not nets.no_final_norm:
        assert head.moment_in == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("body", TRANSFORMERS, ids=lambda body: body.__name__)
def test_branches_of_a_transformer_share_the_stream(body: Callable[..., Any]) -> None:
    planned = rows(plan(body))
    for layer in range(LAYERS):
        for path in (f"attention{layer}/out/kernel", f"down{layer}/kernel"):
            assert planned[path].target == pytest.approx(1 / (2 * LAYERS), rel=0.03)


def test_post_norm_branches_get_a_share_of_one() -> None:
    planned = rows(plan(nets.post_norm))
    for layer in range(LAYERS):
        for path in (f"attention{layer}/out/kernel", f"down{layer}/kernel"):
            assert planned[path].target == pytest.approx(1, rel=0.03)


def test_llama_projections() -> None:
    planned = rows(plan(nets.llama))
    for layer in range(LAYERS):
        for name in "qkv":
            row = planned[f"{name}{layer}/kernel"]
            assert row.sigma * D**0.5 == pytest.approx(1, rel=0.03)
        for name in ("gate", "up"):
            row = planned[f"{name}{layer}/kernel"]
            assert row.sigma * D**0.5 == pytest.approx(1, rel=0.03)
        down = planned[f"down{layer}/kernel"]
        # E[silu(z)²] of a unit normal z, times 1.
        assert down.moment_in == pytest.approx(0.356, rel=0.06)
        assert down.target == pytest.approx(1 / (2 * LAYERS), rel=0.03)


def test_llama_measured() -> None:
    measured = moments(Net(nets.llama), SEEDS, one_input)
    for layer in range(LAYERS):
        for name in ("q", "k", "v", "gate", "up"):
            assert measured[f"{name}{layer}"] == pytest.approx(1, abs=0.1)
        assert measured[f"down{layer}"] == pytest.approx(1 / (2 * LAYERS), rel=0.15)
        assert measured[f"o{layer}"] < 1.1 / (2 * LAYERS)


def test_bert_tables_match_the_tied_one() -> None:
    _, variables = initialized(Net(nets.bert), 0, IDX, IDX)
    planned = rows(plan(nets.bert, IDX, IDX))
    tied = planned["emb/embedding"]
    assert tied.sigma * D**0.5 == pytest.approx(1, rel=0.01)
    assert tied.roles == ("lookup", "readout")
    for name in ("segments", "positions"):
        row = planned[f"{name}/embedding"]
        assert row.sigma == pytest.approx(tied.sigma, rel=0.02)
        assert row.m == 1
    idx, segments = with_segments(1)
    output, _ = run(Net(nets.bert), variables, idx, segments)
    assert moment(output) == pytest.approx(1, abs=0.1)


def test_lookups_that_are_added_share_the_arrival() -> None:
    planned = rows(plan(nets.three_lookups, IDX, IDX))
    for path in ("emb/embedding", "positions", "segments/embedding"):
        assert planned[path].sigma ** 2 == pytest.approx(1 / 3, rel=0.03)
        assert planned[path].arrival == pytest.approx(1 / 3, rel=0.03)
    measured = moments(Net(nets.three_lookups), 3, with_segments)
    # Two rows of segments scatter.
    assert measured["arrival"] == pytest.approx(1, abs=0.15)
    assert measured["output"] == pytest.approx(1, abs=0.15)


def test_lookups_that_are_concatenated_arrive_at_one_each() -> None:
    planned = rows(plan(nets.concatenated_lookups, IDX, IDX))
    for path in ("emb/embedding", "segments/embedding"):
        assert planned[path].sigma == pytest.approx(1, rel=0.01)
    measured = moments(Net(nets.concatenated_lookups), 3, with_segments)
    assert measured["output"] == pytest.approx(1, abs=0.15)


def test_constant_positions_do_not_count() -> None:
    row = only_row(plan(nets.sinusoids), "emb")
    assert row.sigma * D**0.5 == pytest.approx(1, rel=0.01)
    assert row.m == 1
    assert row.arrival == pytest.approx(1, rel=0.02)


def test_positions_under_the_same_multiplier_match_the_tokens() -> None:
    planned = rows(plan(nets.positions_before_the_multiplier))
    tied, positions = planned["emb/embedding"], planned["positions/embedding"]
    assert tied.sigma * D**0.5 == pytest.approx(1, rel=0.01)
    assert positions.sigma == pytest.approx(tied.sigma, rel=0.02)
    assert tied.m == 1
    assert positions.m == pytest.approx(D**-0.5, rel=0.01)


def test_table_read_through_a_bottleneck() -> None:
    planned = rows(plan(nets.factorized_table))
    assert planned["emb/embedding"].sigma * 8 == pytest.approx(1, rel=0.01)
    assert planned["narrow/kernel"].sigma * D**0.5 == pytest.approx(1, rel=0.01)
    # The lookup brings 1/64, summed over 64.
    assert planned["widen/kernel"].sigma == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    ("body", "sigma"),
    [(nets.cosine_readout, 1), (nets.cosine_readout_with_multiplier, D**-0.5)],
    ids=["plain", "multiplier"],
)
def test_lookup_decides_where_the_output_is_scale_free(body: Any, sigma: float) -> None:
    row = only_row(plan(body), "emb")
    assert row.sigma == pytest.approx(sigma, rel=0.02)
    assert row.m == pytest.approx(sigma, rel=0.02)
    assert row.arrival == pytest.approx(1, rel=0.02)


def test_one_table_for_two_outputs() -> None:
    row = only_row(plan(nets.two_readouts), "emb")
    assert row.sigma * D**0.5 == pytest.approx(1, rel=0.01)
    measured = moments(Net(nets.two_readouts), SEEDS, one_input)
    assert measured["output#1"] == pytest.approx(1, abs=0.1)


def test_readout_split_over_the_width_is_one_row() -> None:
    row = only_row(plan(nets.split_readout), "emb")
    assert row.sigma * D**0.5 == pytest.approx(1, rel=0.01)


def test_summed_readouts_share_the_logits() -> None:
    row = only_row(plan(nets.summed_readouts), "emb")
    assert row.sigma * (2 * D) ** 0.5 == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("body", [nets.logits_and_loss, nets.loss_only, nets.logits_and_z_loss])
def test_loss_adds_no_site(body: Callable[..., Any]) -> None:
    row = only_row(plan(body), "emb")
    assert row.sigma * D**0.5 == pytest.approx(1, rel=0.01)
    assert row.m == 1


def test_pooled_classifier() -> None:
    measured = moments(Net(nets.pooled_classifier), 4, one_input)
    assert measured["hidden"] == pytest.approx(1, abs=0.1)
    assert measured["output"] == pytest.approx(1, abs=0.2)


def test_bag_of_words() -> None:
    planned = rows(plan(nets.bag_of_words))
    assert planned["emb/embedding"].sigma == pytest.approx(1, rel=0.01)
    assert planned["hidden/kernel"].moment_in == pytest.approx(LENGTH, rel=0.03)
    measured = moments(Net(nets.bag_of_words), 4, one_input)
    assert measured["hidden"] == pytest.approx(1, abs=0.15)
    assert measured["output"] == pytest.approx(1, abs=0.2)


def test_scores_without_a_factor_share_their_excess() -> None:
    planned = rows(plan(nets.unscaled_scores, jnp.zeros((8, 16, D))))
    head_dim = D // nets.HEADS
    for name in "qk":
        row = planned[f"{name}/kernel"]
        assert row.sigma**2 * D == pytest.approx(head_dim**-0.5, rel=0.03)
        assert row.m == 1
    assert planned["v/kernel"].sigma ** 2 * D == pytest.approx(1, rel=0.03)
    measured = moments(Net(nets.unscaled_scores), 3, lambda seed: (normal(seed, (8, 16, D)),))
    assert measured["scores"] == pytest.approx(1, abs=0.15)


def test_scores_with_a_factor_on_both_sides_are_left() -> None:
    planned = rows(plan(nets.scaled_scores, jnp.zeros((8, 16, D))))
    for name in "qkv":
        assert planned[f"{name}/kernel"].sigma ** 2 * D == pytest.approx(1, rel=0.03)
        assert planned[f"{name}/kernel"].m == 1
    measured = moments(Net(nets.scaled_scores), 3, lambda seed: (normal(seed, (8, 16, D)),))
    assert measured["scores"] == pytest.approx(1, abs=0.15)


def test_readout_of_two_lookups() -> None:
    planned = rows(plan(nets.two_towers, IDX, IDX))
    for name in ("users", "items"):
        assert planned[f"{name}/embedding"].sigma ** 2 == pytest.approx(D**-0.5, rel=0.03)
    measured = moments(
        Net(nets.two_towers), 3, lambda seed: (tokens(seed, VOCAB), tokens(seed + 9, VOCAB))
    )
    assert measured["output"] == pytest.approx(1, abs=0.15)


def test_positions_added_to_a_computed_signal_stay_as_drawn() -> None:
    x = jnp.zeros((8, 16, 192))
    planned = plan(nets.patches, x)
    reasons = {left.path: left.reason.name for left in planned.left_alone}
    assert reasons["positions"] == "ADDED_TABLE"
    assert only_row(planned, "patch").sigma * 192**0.5 == pytest.approx(1, rel=0.01)
    measured = moments(Net(nets.patches), SEEDS, lambda seed: (normal(seed, (8, 16, 192)),))
    assert measured["patch"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_one_bias_on_the_scores_of_all_layers_stays_as_drawn(layers: int, masked: bool) -> None:
    planned = plan(nets.relative_positions(layers, masked), jnp.zeros((8, 16, D)))
    reasons = {left.path: left.reason.name for left in planned.left_alone}
    assert reasons["bias/embedding"] == "ADDED_TABLE"
    scales = rows(planned)
    for layer in range(layers):
        for name in "qk":
            share = scales[f"{name}{layer}/kernel"].sigma ** 2 * D * (D / HEADS) ** 0.5
            assert share == pytest.approx(1, rel=0.05)


def test_one_bias_that_is_also_read_is_a_lookup() -> None:
    planned = rows(plan(nets.relative_positions(2, False, read=True), jnp.zeros((8, 16, D))))
    assert planned["bias/embedding"].roles == ("lookup",)


@pytest.mark.parametrize(("multiplier", "target"), [(1, 1 / 4), (0.8, 0.390625), (0.22, 1)])
def test_multiplier_of_a_branch_counts_towards_its_share(multiplier: float, target: float) -> None:
    body = nets.residual_multiplier(multiplier)
    planned = rows(plan(body))
    for layer in range(LAYERS):
        assert planned[f"down{layer}/kernel"].target == pytest.approx(target, rel=0.03)
    measured = moments(Net(body), SEEDS, one_input)
    for layer in range(LAYERS):
        assert measured[f"down{layer}"] == pytest.approx(target, rel=0.15)


def test_tied_table_without_a_norm_settles_with_itself() -> None:
    def body(net: Any, idx: jax.Array) -> jax.Array:
        emb = nets.nn.Embed(VOCAB, D)
        return emb.attend(emb(idx))

    # The readout reads what the same table looked up: d·σ⁴ = 1.
    planned = plan(body)
    assert only_row(planned, "Embed").sigma ** 4 * D == pytest.approx(1, rel=0.03)
    assert_logits(body)


def test_tied_table_without_a_norm_and_with_a_multiplier() -> None:
    def body(net: Any, idx: jax.Array) -> jax.Array:
        emb = nets.nn.Embed(VOCAB, D)
        return emb.attend(emb(idx) * jnp.sqrt(D))

    assert only_row(plan(body), "Embed").sigma * D**0.5 == pytest.approx(1, rel=0.02)
    assert_logits(body)
