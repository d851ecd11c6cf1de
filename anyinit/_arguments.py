"""What the entry points of every framework check of their arguments before an analysis."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyinit._plan.plan import Plan

Patterns = str | Sequence[str] | None

MODES = ("analytic", "empirical")

# Where the classes of each framework are defined. Keras first: on PyTorch its layers are both.
_FRONT_ENDS = {"keras": "keras", "torch": "torch", "flax.linen": "flax", "flax.nnx": "nnx"}


def not_a_model(own: str, expected: str, got: Any) -> TypeError:
    """The error for a model that is none of this front end, with a way out where there is one.

    Arguments:
        own: the front end that was called, as in ``anyinit.torch``.
        expected: what it takes, in words.
        got: what the caller passed.
    """
    kind = got if isinstance(got, type) else type(got)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    hint = " itself, a class: create an instance first." if isinstance(got, type) else "."
    modules = [f"{base.__module__}." for base in kind.__mro__]
    for prefix, front_end in _FRONT_ENDS.items():
        if any(module.startswith(f"{prefix}.") for module in modules):
            if front_end != own:
                hint += f" For such a model use anyinit.{front_end}."
            break
    return TypeError(f"Expected {expected}, got {name}{hint}")


def check_mode(mode: str) -> None:
    """Refuse an unknown ``mode``."""
    if mode not in MODES:
        listed = " or ".join(f'"{known}"' for known in MODES)
        raise ValueError(
            f'Unknown mode: got mode={mode!r}, expected {listed} ("empirical" measures on the '
            "batch that is passed)."
        )


def check_moment(value: Any) -> None:
    """Refuse an ``input_moment`` that is no second moment."""
    valid = isinstance(value, (int, float)) and 0 < value < float("inf")
    if not valid:
        raise ValueError(
            f"input_moment={value!r} is no second moment: expected a positive finite number, "
            "E[x²] of one element of the float inputs."
        )


def check_inputs(arrays: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Refuse inputs without elements."""
    for array in arrays:
        if 0 in array.shape:
            raise ValueError(
                f"An input has no elements: got shape {array.shape}, expected every axis to be "
                "at least 1. Pass an input of the shape that the model is used with."
            )


def check_concrete(leaves: Sequence[Any]) -> None:
    """Refuse what has no values, where values are to be measured on.

    Arguments:
        leaves: the arrays among the model's inputs, or random keys.
    """
    for leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise TypeError(
                "Measuring takes values, but an input is being traced (inside jax.jit, grad or "
                "eval_shape); nothing was changed. Call it outside, or use mode='analytic', which "
                "can be traced."
            )
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(
                f"Measuring takes a real batch, got the shape {leaf.shape} without values. "
                "Pass arrays, or use mode='analytic'."
            )


def check_batch(arrays: Sequence[Any]) -> None:
    """Refuse inputs that nothing can be measured on: without values, with NaN, of equal entries.

    Arguments:
        arrays: the arrays among the model's inputs.
    """
    check_concrete(arrays)
    numbers = [a for a in arrays if not jnp.issubdtype(a.dtype, jax.dtypes.extended)]
    for array in numbers:
        if jnp.issubdtype(array.dtype, jnp.inexact) and bool(jnp.isnan(array).any()):
            raise ValueError(
                f"An input of shape {array.shape} holds NaN, so nothing can be measured on it; "
                "nothing was changed. Clean the batch first."
            )
    sized = [a for a in numbers if a.size > 1]
    if sized and all(bool((a == a.ravel()[0]).all()) for a in sized):
        raise ValueError(
            "All entries of the batch are equal, as in jnp.zeros or jnp.ones, but measuring takes "
            "a real batch; nothing was changed. Pass one, or use mode='analytic', which looks at "
            "shapes only."
        )


def check_values(leaves: Sequence[Any]) -> None:
    """Refuse parameters that have no values to measure.

    Arguments:
        leaves: the parameters.
    """
    for leaf in leaves:
        if isinstance(leaf, (jax.core.Tracer, jax.ShapeDtypeStruct)):
            raise TypeError(
                f"A parameter has no values: got {type(leaf).__name__} of shape {leaf.shape}. "
                "measure runs the model, so call it on real parameters, outside jax.jit."
            )


def exactly(plan: Plan) -> list[str]:
    """Patterns that match the weights of a plan and nothing else."""
    return [glob.escape(row.path) for row in plan.weights]


def selection(
    names: Sequence[str], only: Patterns, skip: str | Sequence[str] | None
) -> Callable[[str], bool]:
    """Whether a path is to be scaled, from the caller's patterns.

    Arguments:
        names: paths of the drawn weights.
        only: patterns of the weights to scale; ``None`` for all.
        skip: patterns of the weights to leave as drawn.

    Raises:
        ValueError: a pattern matches no drawn weight.
    """
    included = _patterns("only", only, names)
    excluded = _patterns("skip", skip, names)

    def chosen(name: str) -> bool:
        wanted = only is None or any(fnmatch.fnmatchcase(name, p) for p in included)
        return wanted and not any(fnmatch.fnmatchcase(name, p) for p in excluded)

    return chosen


def _patterns(option: str, given: Patterns, names: Sequence[str]) -> tuple[str, ...]:
    if given is None:
        return ()
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ValueError(
                f"{option}={pattern!r} matches no drawn weight. The drawn weights are: {listed}. "
                "Patterns are matched against whole paths; * matches anything."
            )
    return patterns


def call_note(name: str, args: Sequence[Any], arrays: Sequence[Any], instead: str) -> str:
    """What a model was called with, for an error that it raised.

    Arguments:
        name: the model's class.
        args: the positional arguments.
        arrays: shapes and dtypes of all arrays among the arguments.
        instead: where a random key belongs that was passed first.
    """
    listed = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays) or "no arrays"
    note = f"anyinit called {name} with {listed}."
    first = getattr(args[0], "dtype", None) if args else None
    if first is not None and jnp.issubdtype(first, jax.dtypes.prng_key):
        note += f" The first is a random key: plan takes none, plan(model, x); {instead}."
    return note
