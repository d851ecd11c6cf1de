"""Labels and rates of models that anyinit has planned itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState
from measure import flat, tokens
from models import LENGTH, VOCAB, FusedBlock, TiedLM
from passes import D

import anyinit
import anyinit.flax

pytestmark = pytest.mark.standard_promotion

WIDTH, RATE = 64, 1e-3
IDX = jnp.zeros((8, LENGTH), jnp.int32)
# No biases: some of them, as those of keys, have no gradient.
MODEL = TiedLM(WIDTH, 2, block=FusedBlock, positions="embed", **D)
TABLE = "emb/embedding"


@pytest.fixture(scope="module")
def variables() -> Any:
    return anyinit.flax.init(MODEL, jax.random.key(0), IDX)


def loss(params: Any, idx: jax.Array) -> jax.Array:
    logits = MODEL.apply({"params": params}, idx[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, idx[:, 1:]).mean()


def test_only_the_tied_table_is_labelled_table(variables: Any) -> None:
    labels = flat(anyinit.optax_labels(variables)["params"])
    assert labels.pop(TABLE) == "table"
    assert "positions/embedding" in labels
    assert set(labels.values()) == {"rest"}


def test_labels_of_a_frozen_dict(variables: Any) -> None:
    plan, params = anyinit.flax.plan(MODEL, IDX), freeze(dict(variables["params"]))
    labels = anyinit.optax_labels(params, plan=plan)
    assert isinstance(labels, FrozenDict)
    assert jax.tree.structure(labels) == jax.tree.structure(params)
    assert labels["emb"]["embedding"] == "table"
    assert set(jax.tree.leaves(labels)) == {"table", "rest"}


def test_positions_under_a_multiplier_of_their_own_are_scaled_not_table() -> None:
    model = TiedLM(WIDTH, 1, read="untied", lookup=lambda x, d: x * jnp.sqrt(d), positions="embed")
    labels = flat(anyinit.optax_labels(anyinit.flax.init(model, jax.random.key(0), IDX))["params"])
    # Untied, so the table is no `table`.
    assert labels["emb/embedding"] == "scaled"
    assert labels["positions/embedding"] == "rest"


@pytest.mark.parametrize("forward", [{}, {"lookup": lambda x, d: x * jnp.sqrt(d)}])
def test_without_a_factor_on_the_logits_all_is_rest(forward: Any) -> None:
    variables = anyinit.flax.init(TiedLM(WIDTH, 1, **forward), jax.random.key(0), IDX)
    assert set(jax.tree.leaves(anyinit.optax_labels(variables))) == {"rest"}


def test_first_adam_step_moves_the_table_m_times_as_far(variables: Any) -> None:
    params = variables["params"]
    optimizer = anyinit.optax_partition(variables, optax.adam, learning_rate=RATE, eps=1e-30)
    state = TrainState.create(apply_fn=MODEL.apply, params=variables, tx=optimizer)
    gradients = jax.grad(lambda tree: loss(tree["params"], tokens(1, VOCAB)))(variables)
    moved = state.apply_gradients(grads=gradients).params["params"]
    for path, leaf in flat(moved).items():
        step = np.abs(np.asarray(leaf, np.float64) - np.asarray(flat(params)[path], np.float64))
        factor = WIDTH**0.5 if path == TABLE else 1
        # Positions beyond the sequence have no gradient and do not move.
        assert np.median(step[step > 0]) == pytest.approx(factor * RATE, rel=0.01), path


@pytest.mark.parametrize("container", [dict, freeze], ids=["dict", "frozen"])
def test_rates_under_a_schedule(variables: Any, container: Any) -> None:
    plan, params = anyinit.flax.plan(MODEL, IDX), container(variables["params"])
    schedule = optax.linear_schedule(1.0, 0.1, 3)
    optimizer = anyinit.optax_partition(params, optax.sgd, plan=plan, learning_rate=schedule)
    state, ones = optimizer.init(params), jax.tree.map(jnp.ones_like, params)
    for step in range(4):
        updates, state = optimizer.update(ones, state, params)
        table = updates["emb"]["embedding"]
        np.testing.assert_allclose(table, -(WIDTH**0.5) * schedule(step), rtol=1e-4)
        rest = updates["LayerNorm_0"]["scale"]
        np.testing.assert_allclose(rest, -schedule(step), rtol=1e-5)


def test_clipping_inside_the_partition_clips_by_group(variables: Any) -> None:
    params, m = variables, WIDTH**0.5
    zeros = jax.tree.map(np.zeros_like, dict(params))
    zeros["params"]["emb"]["embedding"][3, 5] = 100
    zeros["params"]["LayerNorm_0"]["scale"][7] = 1
    gradients = jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(zeros))

    def moved(optimizer: optax.GradientTransformation) -> tuple[float, float]:
        updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        inner = updates["params"]
        return float(inner["emb"]["embedding"][3, 5]), float(inner["LayerNorm_0"]["scale"][7])

    clip = optax.clip_by_global_norm(1.0)
    outside = optax.chain(clip, anyinit.optax_partition(params, optax.sgd, learning_rate=1.0))
    inside = anyinit.optax_partition(
        params, lambda learning_rate: optax.chain(clip, optax.sgd(learning_rate)), learning_rate=1.0
    )
    assert moved(outside) == (pytest.approx(-m, rel=1e-3), pytest.approx(-0.01, rel=1e-3))
    assert moved(inside) == (pytest.approx(-m, rel=1e-3), pytest.approx(-1, rel=1e-3))


def test_restored_params_need_the_plan(variables: Any) -> None:
    restored = {"params": dict(variables["params"])}
    for call in (anyinit.optax_labels, anyinit.optax_partition):
        with pytest.raises((TypeError, ValueError), match="plan="):
            call(restored)
    plan = anyinit.Plan.from_json(anyinit.flax.plan(MODEL, IDX).to_json())
    labels = anyinit.optax_labels(restored, plan=plan)
    assert flat(labels["params"]) == flat(anyinit.optax_labels(variables)["params"])
