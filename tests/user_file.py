"""A user's file: it must check clean under a strict type checker."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped, unused-ignore]
from flax import nnx

import anyinit


class TiedLM(nn.Module):
    vocab: int
    d: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = nn.Embed(self.vocab, self.d)
        logits: jax.Array = table.attend(nn.LayerNorm()(table(tokens))) / self.d**0.5
        return logits


def train_step(tokens: jax.Array) -> anyinit.Variables:
    model = TiedLM(vocab=32, d=8)
    params: anyinit.Variables = anyinit.flax.init(model, jax.random.key(0), tokens)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        anyinit.optax_partition(params, optax.adamw, learning_rate=3e-3, weight_decay=0.1),
    )
    state = optimizer.init(params)

    def loss(params: anyinit.Variables) -> jax.Array:
        logits = model.apply(params, tokens)  # pyright: ignore[reportUnknownMemberType]
        assert isinstance(logits, jax.Array)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens))

    gradient: Callable[[anyinit.Variables], anyinit.Variables] = jax.grad(loss)  # pyright: ignore
    updates, _ = optimizer.update(gradient(params), state, params)
    updated = optax.apply_updates(params, updates)
    assert isinstance(updated, anyinit.Variables)
    return updated


def report(tokens: jax.ShapeDtypeStruct) -> list[str]:
    model = TiedLM(vocab=32, d=8)
    plan: anyinit.Plan = anyinit.flax.plan(model, tokens)
    restored = anyinit.Plan.from_json(plan.to_json())
    lines = [f"{weight.path}: {weight.sigma}, {weight.m:.3g}" for weight in restored.weights]
    lines += [plan.explain(row.path) for row in plan.weights]
    lines += [f"{left.path}: {left.reason.value}" for left in plan.left_alone]
    lines += [finding.message for finding in plan.findings]
    return lines


def rescale(plan: anyinit.Plan, params: dict[str, dict[str, jax.Array]]) -> object:
    labels = anyinit.optax_labels(params, plan=plan)
    assert labels
    return plan.rescale(params)


def linear(rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(8, 4, rngs=rngs)


def in_place(model: nnx.Linear, x: jax.Array) -> float:
    plan = anyinit.nnx.init(model, x, only="*kernel", input_moment=2.0)
    shapes = anyinit.nnx.plan(linear, x)
    assert shapes == plan
    row: anyinit.WeightPlan = plan.weights[0]
    return sum(row.sigma) if isinstance(row.sigma, tuple) else row.sigma
