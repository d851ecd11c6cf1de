"""Wrong calls: the error says what was got, what was expected and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import FlaxError
from measure import keys
from models import LENGTH, Net, ReluMLP, TiedLM

import anyinit.flax

KEY = jax.random.key(0)
X = jnp.zeros((4, 64))
IDX = jnp.zeros((8, LENGTH), jnp.int32)
MODEL = ReluMLP(64, 2)

ENTRIES: dict[str, Callable[..., Any]] = {
    "init": lambda model, *args, **kwargs: anyinit.flax.init(model, KEY, *args, **kwargs),
    "plan": anyinit.flax.plan,
}
entries = pytest.mark.parametrize("entry", list(ENTRIES.values()), ids=list(ENTRIES))


def error(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The message of the error that a call raises."""
    with pytest.raises((ValueError, TypeError, KeyError, FloatingPointError, FlaxError)) as info:
        call(*args, **kwargs)
    return str(info.value)


def line_of(function: Callable[..., Any], fragment: str) -> str:
    """`file.py:line` of the line of a function that contains a fragment."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines) if fragment in line]
    return f"test_bad_input.py:{first + number}"


def sines(net: nn.Module, x: jax.Array) -> jax.Array:
    return jnp.sin(x)


def constants(net: nn.Module, x: jax.Array) -> jax.Array:
    x = nn.Dense(64, kernel_init=nn.initializers.ones)(x)
    return nn.LayerNorm()(x)


@entries
@pytest.mark.parametrize("body", [sines, constants], ids=["no_parameters", "constants"])
def test_model_without_a_drawn_weight(entry: Any, body: Any) -> None:
    message = error(entry, Net(body), X)
    assert "drawn" in message
    assert "weight" in message


def logarithm(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Dense(64)(x)
    h = jnp.log(h)
    return nn.Dense(64)(h)


def overflow(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.Dense(64)(x)
    h = jnp.exp(100 * jnp.square(h))
    return nn.Dense(64)(h)


def division(net: nn.Module, x: jax.Array) -> jax.Array:
    h = nn.relu(nn.Dense(64)(x))
    h = x / h
    return nn.Dense(64)(h)


@entries
@pytest.mark.parametrize(
    ("body", "primitive", "line"),
    [
        (logarithm, "log", "jnp.log(h)"),
        (overflow, "exp", "jnp.exp(100 * jnp.square(h))"),
        (division, "div", "x / h"),
    ],
    ids=["nan", "infinite", "zero_division"],
)
def test_values_that_are_not_finite(entry: Any, body: Any, primitive: str, line: str) -> None:
    message = error(entry, Net(body), X)
    assert primitive in message
    assert line_of(body, line) in message
    assert "NaN" in message or "nan" in message or "inf" in message


normal = nn.initializers.normal(0.02)


@entries
@pytest.mark.parametrize("shape", [(0, 64), (4, 0)])
def test_float_input_of_zero_size(entry: Any, shape: Any) -> None:
    message = error(
        entry, Net(lambda net, x: nn.Dense(64, kernel_init=normal)(x)), jnp.zeros(shape)
    )
    assert str(shape) in message
    assert "zero size" in message or "empty" in message or "no elements" in message


@pytest.mark.parametrize("mode", ["Empirical", "", None, "analytical"])
def test_mode_that_does_not_exist(mode: Any) -> None:
    message = error(anyinit.flax.init, MODEL, KEY, X, mode=mode)
    assert repr(mode) in message
    assert "analytic" in message
    assert "empirical" in message


@pytest.mark.parametrize("option", ["only", "skip"])
@pytest.mark.parametrize("pattern", ["decoder", ["decoder"], ("decoder", "encoder")])
def test_pattern_that_matches_nothing(option: str, pattern: Any) -> None:
    message = error(anyinit.flax.init, MODEL, KEY, X, **{option: pattern})
    assert option in message
    assert "decoder" in message
    # What could have been matched.
    assert "Dense_0/kernel" in message


def test_one_of_two_patterns_matches_nothing() -> None:
    message = error(anyinit.flax.init, MODEL, KEY, X, only=["Dense_0/kernel", "decoder"])
    assert "decoder" in message


def test_params_of_another_model() -> None:
    plan = anyinit.flax.plan(TiedLM(64, 1), IDX)
    message = error(plan.rescale, MODEL.init(KEY, X))
    assert "emb/embedding" in message or "Dense_0/kernel" in message
    assert "plan" in message


def test_params_of_another_width() -> None:
    plan = anyinit.flax.plan(ReluMLP(64, 2), X)
    other = ReluMLP(128, 2).init(KEY, X)
    message = error(plan.rescale, other)
    assert "Dense_0/kernel" in message
    assert "(64, 64)" in message
    assert "(64, 128)" in message


def test_params_with_a_leaf_too_few_and_a_leaf_too_many() -> None:
    plan, variables = anyinit.flax.plan(MODEL, X), MODEL.init(KEY, X)
    few = {"params": {"Dense_0": variables["params"]["Dense_0"]}}
    assert "Dense_1/kernel" in error(plan.rescale, few)
    many = {"params": variables["params"] | {"Extra": {"kernel": jnp.ones((4, 4))}}}
    assert "Extra/kernel" in error(plan.rescale, many)


def test_params_of_another_model_are_not_changed() -> None:
    plan = anyinit.flax.plan(ReluMLP(64, 2), X)
    other = ReluMLP(64, 3).init(KEY, X)
    copy = jax.tree.map(np.array, other)
    error(plan.rescale, other)
    jax.tree.map(np.testing.assert_array_equal, other, copy)


def same_error_as_the_model(call: Callable[..., Any], own: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as expected:
        own()
    with pytest.raises(type(expected.value)) as got:
        call()
    assert type(got.value) is type(expected.value)
    assert str(expected.value) in str(got.value)


class Picky(nn.Module):
    """Rejects what it cannot use, with an error of its own."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim != 2:
            raise ValueError(f"Picky takes [batch, features], not {x.shape}.")
        return nn.Dense(8)(x)


@entries
@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Picky(), (jnp.zeros((2, 3, 4)),)),
        (TiedLM(64, 1), (jnp.zeros((2, 3)),)),
        (MODEL, ()),
        (MODEL, (X, X)),
        (Net(lambda net, x: x @ net.param("w", nn.initializers.normal(), (3, 3))), (X,)),
    ],
    ids=["own_check", "float_tokens", "too_few", "too_many", "shapes"],
)
def test_input_that_the_model_rejects(entry: Any, model: nn.Module, args: Any) -> None:
    same_error_as_the_model(lambda: entry(model, *args), lambda: model.init(KEY, *args))


@entries
def test_the_models_own_line_is_in_the_traceback(entry: Any) -> None:
    with pytest.raises(ValueError, match="Picky takes") as info:
        entry(Picky(), jnp.zeros((2, 3, 4)))
    assert any("Picky takes" in str(frame.statement) for frame in info.traceback)
    # Said first, not as the consequence of something else.
    assert info.value.__cause__ is None


def test_the_models_error_notes_what_it_was_called_with() -> None:
    with pytest.raises(ValueError, match="Picky takes") as info:
        anyinit.flax.plan(Picky(), jnp.zeros((2, 3, 4)))
    assert "anyinit called Picky with float32[2, 3, 4]." in info.value.__notes__
    with pytest.raises(Exception) as info:
        anyinit.flax.plan(MODEL, jax.random.key(0), X)
    assert any("plan takes none, plan(model, x)" in note for note in info.value.__notes__)


def test_flag_that_the_model_does_not_know() -> None:
    same_error_as_the_model(
        lambda: anyinit.flax.init(MODEL, KEY, X, train=True), lambda: MODEL.init(KEY, X, train=True)
    )


@pytest.mark.parametrize("thing", [None, "model", ReluMLP, {"params": {}}])
def test_what_is_not_a_module(thing: Any) -> None:
    message = error(anyinit.flax.init, thing, KEY, X)
    assert "Module" in message
    assert type(thing).__name__ in message or "ReluMLP" in message


def test_forgotten_key() -> None:
    assert "key" in error(anyinit.flax.init, MODEL, X).lower()
    assert "key" in error(anyinit.flax.init, MODEL, X, KEY).lower()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "one"])
def test_moment_of_the_input_that_cannot_be(value: Any) -> None:
    message = error(anyinit.flax.init, MODEL, KEY, X, input_moment=value)
    assert "input_moment" in message
    assert str(value) in message


def test_nothing_changed_after_an_error() -> None:
    variables = MODEL.init(keys(0), X)
    copy = jax.tree.map(np.array, variables)
    error(anyinit.flax.init, MODEL, KEY, X, mode="Empirical")
    error(anyinit.flax.plan(TiedLM(64, 1), IDX).rescale, variables)
    jax.tree.map(np.testing.assert_array_equal, variables, copy)


def test_init_from_shapes_points_to_plan() -> None:
    with pytest.raises(TypeError, match=r"Use anyinit\.flax\.plan\(model, x\)"):
        anyinit.flax.init(MODEL, jax.random.key(0), jax.ShapeDtypeStruct(X.shape, X.dtype))
