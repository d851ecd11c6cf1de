"""Runs models on fresh inputs and measures the second moments of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

import anyinit.flax

Flat = dict[str, Any]
PROJECTIONS = (nn.Dense, nn.DenseGeneral, nn.Conv, nn.Einsum)


def moment(x: Any) -> float:
    """Second moment E[x²], computed in float64."""
    return float(np.mean(np.square(np.asarray(x, np.float64))))


def rms(leaf: Any) -> float:
    """Root mean square of a leaf, its all-zero rows left out."""
    rows = np.asarray(leaf, np.float64).reshape(np.shape(leaf)[0], -1)
    return float(np.sqrt(np.mean(np.square(rows[np.any(rows != 0, axis=1)]))))


def tokens(seed: int, vocab: int, shape: Sequence[int] = (8, 32)) -> jax.Array:
    """Uniform tokens."""
    return jax.random.randint(jax.random.key(1000 + seed), tuple(shape), 0, vocab)


def normal(seed: int, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Unit normal signal."""
    return jax.random.normal(jax.random.key(1000 + seed), tuple(shape), dtype)


def flat(tree: Any) -> Flat:
    """Leaves by path, joined with slashes."""
    return traverse_util.flatten_dict(jax.tree.map(lambda leaf: leaf, dict(tree)), sep="/")


def own_logits(logits: Any, idx: jax.Array) -> np.ndarray:
    """Each position's logit of the token that stands there."""
    return np.take_along_axis(np.asarray(logits, np.float64), np.asarray(idx)[..., None], -1)


def others_moment(logits: Any, idx: jax.Array) -> float:
    """Second moment of the logits of all tokens but the one that stands at the position."""
    values = np.asarray(logits, np.float64)
    other = np.arange(values.shape[-1]) != np.asarray(idx)[..., None]
    return float(np.mean(np.square(values[other])))


def rows(plan: Any) -> dict[str, Any]:
    """Rows of a plan by path."""
    return {row.path: row for row in plan.weights}


def only_row(plan: Any, fragment: str) -> Any:
    """The one row whose path contains a fragment."""
    found = [row for row in plan.weights if fragment in row.path]
    assert len(found) == 1, f"{fragment!r}: {[row.path for row in plan.weights]}"
    return found[0]


def assert_complete(plan: Any, variables: Any) -> None:
    """Every leaf has a row, is another name of one that has, or is listed as left alone."""
    named = [name for row in plan.weights for name in (row.path, *row.aliases)]
    named += [left.path for left in plan.left_alone]
    others = tuple(f"{name}/" for name in variables if name != "params")
    named = [name for name in named if not (others and name.startswith(others))]
    assert sorted(named) == sorted(flat(variables["params"]))


def initialized(model: nn.Module, seed: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """A model's plan, and its variables drawn from a seed and rescaled."""
    plan = anyinit.flax.plan(model, *args, **kwargs)
    variables = plan.rescale(model.init(keys(seed), *args, **kwargs))
    assert_complete(plan, variables)
    return plan, variables


def keys(seed: int) -> dict[str, jax.Array]:
    """Keys for parameters and dropout."""
    params, dropout = jax.random.split(jax.random.key(seed))
    return {"params": params, "dropout": dropout}


def run(model: nn.Module, variables: Any, *args: Any, **kwargs: Any) -> tuple[Any, Flat]:
    """Output of a model, and by path what its projections and `sow` calls computed.

    What one path computed in several calls is listed as `path`, `path#1`, `path#2` ....
    """
    output, state = model.apply(
        variables,
        *args,
        rngs={"dropout": jax.random.key(7)},
        mutable=["intermediates"],
        capture_intermediates=lambda m, name: isinstance(m, PROJECTIONS) and name == "__call__",
        **kwargs,
    )
    captured: Flat = {}
    for path, values in flat(state.get("intermediates", {})).items():
        for number, value in enumerate(values):
            name = path.removesuffix("/__call__")
            captured[f"{name}#{number}" if number else name] = value
    return output, captured


def moments(model: nn.Module, seeds: int, make_args: Any, **kwargs: Any) -> dict[str, float]:
    """Second moments of what a model computes, averaged over seeds, its output as `output`.

    `make_args(seed)` gives fresh inputs; several outputs are `output`, `output#1` ....
    """
    plan = anyinit.flax.plan(model, *make_args(0), **kwargs)
    measured: dict[str, list[float]] = {}
    for seed in range(seeds):
        variables = plan.rescale(model.init(keys(seed), *make_args(0), **kwargs))
        assert_complete(plan, variables)
        output, captured = run(model, variables, *make_args(seed + 1), **kwargs)
        for number, leaf in enumerate(jax.tree.leaves(output)):
            captured[f"output#{number}" if number else "output"] = leaf
        for path, value in captured.items():
            measured.setdefault(path, []).append(moment(value))
    return {path: float(np.mean(values)) for path, values in measured.items()}
