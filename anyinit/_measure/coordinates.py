"""The coordinate check: does a model start, and learn, alike at every width?

For each width a model is initialized and trained for a few steps. What is recorded is the second
moment of every site before the first step, and the second moment of what the steps have changed
there. (Yang et al. 2022, Tensor Programs V, appendix D.1, plot the same against width.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from anyinit import flax as linen
from anyinit._measure.coordinates_report import Coordinate, CoordinateCheck

Loss = Callable[[Any, Any], jax.Array]
Initialize = Callable[..., Any]


def coordinate_check(
    make_model: Callable[[int], nn.Module],
    widths: Sequence[int],
    batch: Any,
    optimizer: optax.GradientTransformation | Callable[[Any], optax.GradientTransformation],
    steps: int = 4,
    *,
    loss: Loss | None = None,
    initialize: Initialize | None = None,
    seeds: int = 1,
) -> CoordinateCheck:
    """Train a linen model of several widths for a few steps, and compare what moves.

    >>> import flax.linen as nn, jax, optax
    >>> import anyinit
    >>> x = jax.random.normal(jax.random.key(0), (32, 16))
    >>> make = lambda width: nn.Sequential([nn.Dense(width), nn.relu, nn.Dense(4)])
    >>> check = anyinit.coordinate_check(make, [64, 256], (x, x[:, :4]), optax.adam(1e-3), steps=2)
    >>> check.sites
    ('layers_0/kernel, nonlinearity', 'output')
    >>> 0.5 < check.spread("output", step=0) < 2
    True

    Arguments:
        make_model: makes the module of a width.
        widths: the widths, two or more.
        batch: tokens, or a pair of inputs (an array, or a tuple of arrays for several inputs) and
            targets.
        optimizer: a transformation, or a function that makes one from the variables, as
            ``lambda params: anyinit.optax_partition(params, optax.adam, learning_rate=1e-3)``.
        steps: optimizer steps.
        loss: of the model's outputs and the targets, a scalar; by default the cross-entropy of
            integer targets (of tokens alone, of the next one) or the mean squared error.
        initialize: called with the model, a key and the inputs; ``anyinit.flax.init`` by default.
        seeds: draws of the parameters that are averaged.

    Returns:
        Records of every site, width, seed and step, with a table (``print``) and a figure.

    Raises:
        ValueError: fewer than two widths, no step, or sites that differ from width to width.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            "coordinate_check makes a model of each width: expected a function of the width, such "
            f"as lambda width: Model(width), got an instance of {type(make_model).__name__}."
        )
    widths = tuple(widths)
    if len(set(widths)) < 2 or min(widths) < 1:
        raise ValueError(
            f"coordinate_check compares widths: expected two or more different ones, got "
            f"{list(widths)}."
        )
    if steps < 1 or seeds < 1:
        raise ValueError(
            f"coordinate_check needs a step and a seed: expected 1 or more of each, got "
            f"steps={steps}, seeds={seeds}."
        )
    inputs, targets, default = _taken_apart(batch)
    records: list[Coordinate] = []
    names: tuple[str, ...] = ()
    for width in widths:
        model = make_model(width)
        values = linen.site_values(model, *inputs)
        if names and values.names != names:
            unlike = sorted(set(names) ^ set(values.names))
            raise ValueError(
                f"coordinate_check: the model of width {width} has other sites than that of width "
                f"{widths[0]}: {', '.join(unlike[:4])}. Let make_model change widths alone, not "
                "the depth or the names of layers."
            )
        names = values.names
        for seed in range(seeds):
            variables = (initialize or linen.init)(model, jax.random.key(seed), *inputs)
            if isinstance(optimizer, optax.GradientTransformation):
                rule = optimizer
            else:
                rule = optimizer(variables)
            moments = _followed(
                model, variables, values.of, rule, inputs, targets, loss or default, steps
            )
            records += [
                Coordinate(width, seed, step, name, float(start), float(change))
                for step, found in enumerate(moments)
                for name, (start, change) in zip(names, found, strict=True)
            ]
    return CoordinateCheck(tuple(records))


def _taken_apart(batch: Any) -> tuple[tuple[Any, ...], Any, Loss]:
    """Inputs, targets and the loss that goes with them."""
    if not isinstance(batch, tuple):
        tokens = jnp.asarray(batch)
        if not jnp.issubdtype(tokens.dtype, jnp.integer) or tokens.ndim < 2:
            raise ValueError(
                f"coordinate_check: a batch that is no pair has to be tokens, integers of two axes "
                f"or more; got {tokens.dtype}{list(tokens.shape)}. Pass (inputs, targets)."
            )
        return (tokens,), tokens[..., 1:], _next_token
    if len(batch) != 2:
        raise ValueError(
            f"coordinate_check: expected (inputs, targets), got a tuple of {len(batch)}. Several "
            "inputs are a tuple of their own: ((x, y), targets)."
        )
    inputs = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
    integers = jnp.issubdtype(jnp.asarray(batch[1]).dtype, jnp.integer)
    return inputs, jnp.asarray(batch[1]), _cross_entropy if integers else _squared_error


def _cross_entropy(logits: Any, targets: Any) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.asarray(jnp.mean(losses))


def _next_token(logits: Any, targets: Any) -> jax.Array:
    return _cross_entropy(logits[..., :-1, :], targets)


def _squared_error(output: Any, targets: Any) -> jax.Array:
    return jnp.mean(jnp.square(output - targets))


def _followed(
    model: nn.Module,
    variables: Any,
    values: Callable[[Any], list[jax.Array]],
    optimizer: optax.GradientTransformation,
    inputs: tuple[Any, ...],
    targets: Any,
    loss: Loss,
    steps: int,
) -> list[np.ndarray]:
    """Second moments of every site and of its change, before the first step and after each."""
    variables = dict(variables)
    others = {name: tree for name, tree in variables.items() if name != "params"}
    # Flax draws every stream that has no key of its own from that of the parameters.
    streams = {"params": jax.random.key(0)}

    def objective(params: Any) -> jax.Array:
        whole = {**others, "params": params}
        if others:
            output, _ = model.apply(whole, *inputs, rngs=streams, mutable=list(others))
        else:
            output = model.apply(whole, *inputs, rngs=streams)
        return loss(output, targets)

    @jax.jit
    def advance(params: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(objective)(params), state, params)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def compare(params: Any, first: Any) -> jax.Array:
        now, before = (values({**others, "params": tree}) for tree in (params, first))
        moments = [(_moment(x), _moment(x - y)) for x, y in zip(now, before, strict=True)]
        return jnp.asarray(moments)

    first = params = variables["params"]
    state = optimizer.init(params)
    found = [np.asarray(compare(params, first))]
    for _ in range(steps):
        params, state = advance(params, state)
        found.append(np.asarray(compare(params, first)))
    if not all(np.isfinite(moments).all() for moments in found):
        bad = next(step for step, moments in enumerate(found) if not np.isfinite(moments).all())
        raise FloatingPointError(
            f"coordinate_check: after {bad} steps a site of {type(model).__name__} is NaN or "
            "infinite. Lower the learning rate, or check the batch."
        )
    return found


def _moment(x: Any) -> jax.Array:
    return jnp.mean(jnp.square(jnp.asarray(x, jnp.float32)))
