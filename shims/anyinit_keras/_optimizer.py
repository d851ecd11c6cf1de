"""An optimizer that gives each weight its own multiple of the learning rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import keras

from anyinit._plan.plan import Plan
from anyinit._plan.rates import grouped_by_rate, is_same_rate, rows_with_own_rate
from anyinit_keras._checks import check_model, check_plan
from anyinit_keras._names import named_variables
from anyinit_keras._rates import check_rate, times


def optimizer(
    model: keras.Layer,
    plan: Plan,
    optimizer_class: Callable[..., keras.Optimizer] = keras.optimizers.AdamW,
    *,
    learning_rate: Any = 1e-3,
    **hyperparameters: Any,
) -> keras.optimizers.MultiOptimizer:
    """Make an optimizer in which each weight has its own multiple m of the learning rate.

    >>> import keras
    >>> import anyinit.keras
    >>> model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    >>> plan = anyinit.keras.init(model)
    >>> made = anyinit.keras.optimizer(model, plan, keras.optimizers.Adam, learning_rate=3e-3)
    >>> len(made.optimizers)
    1

    One optimizer holds everything whose m is 1, and one more each further value of m. The rates
    are found by the paths of the variables, so they survive ``save`` and ``load_model``, and
    ``clone_model``: give the layers of a subclassed model names, since Keras numbers those
    without one by what the process has made before, and refuses to load the optimizer where the
    numbers differ. Variables that are added later (LoRA) get the plain rate.

    ``clipnorm`` and ``clipvalue`` act on each variable as ever; ``global_clipnorm`` is refused
    where there are several rates, since each optimizer would clip by the norm of its own part.
    ReduceLROnPlateau multiplies every rate by its factor, so their ratio is kept down to
    ``min_lr``. LearningRateScheduler calls its function once for each rate: one that returns a
    multiple of the rate it is given keeps the ratio, one that returns a number sets all rates to
    that number and undoes m. A ``LearningRateSchedule`` keeps the ratio.

    Arguments:
        model: the model that was planned.
        plan: its plan.
        optimizer_class: a class such as ``keras.optimizers.AdamW``.
        learning_rate: a number or a ``LearningRateSchedule``; the rate of weights whose m is 1.
        **hyperparameters: passed on to every optimizer.

    Returns:
        A ``keras.optimizers.MultiOptimizer``; its ``optimizers`` are those of m ≠ 1 in order of
        size, and last the one of m = 1.

    Raises:
        TypeError: the model is no Keras 3 model, or the class does not take the arguments.
        ValueError: the plan belongs to another model, variables that need different rates have
            one path, or the learning rate is none.
    """
    check_model(model)
    check_rate(learning_rate)
    if not callable(optimizer_class):
        raise TypeError(
            "optimizer_class must be a class such as keras.optimizers.AdamW, got "
            f"{optimizer_class!r}: an optimizer is made for each learning rate. Pass the class, "
            "and its settings as keywords."
        )
    named = named_variables(model)
    check_plan(model, plan, named)
    own = rows_with_own_rate(plan)
    groups = grouped_by_rate(own)
    if groups and hyperparameters.get("global_clipnorm") is not None:
        raise ValueError(
            "global_clipnorm cannot be split over several learning rates: got "
            f"{hyperparameters['global_clipnorm']!r}, and each optimizer would clip by the norm "
            "of its own variables alone. Use clipnorm (a norm for each variable)."
        )

    def make(m: float) -> keras.Optimizer:
        return optimizer_class(learning_rate=times(m, learning_rate), **hyperparameters)

    rest = optimizer_class(learning_rate=times(1.0, learning_rate), **hyperparameters)
    # One key a group: an optimizer under two keys would be two optimizers once it is loaded.
    keys = {
        "|".join(_pattern(named[row.path].path, model.name) for row in group): group[0].m
        for group in groups
    }
    _check_paths(keys, {row.path: row.m for row in own}, named)
    keyed = {key: make(m) for key, m in keys.items()}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(rest, keyed))


def _pattern(path: str, name: str) -> str:
    """A path as the key of an ``OptimizerMap``, which reads what is no path as a pattern.

    The name of the model itself is optional: a subclassed model has it in its paths when it is
    built by a call, and lacks it when it is loaded.
    """
    prefix = f"{name}/"
    if not path.startswith(prefix):
        return re.escape(path)
    return f"(?:{re.escape(prefix)})?{re.escape(path.removeprefix(prefix))}"


def _check_paths(
    keys: Mapping[str, float],
    multipliers: Mapping[str, float],
    named: Mapping[str, keras.Variable],
) -> None:
    """Refuse variables that a key would give another one's rate."""
    for key, m in keys.items():
        taken = {name: v.path for name, v in named.items() if re.fullmatch(key, v.path)}
        taken = {name: path for name, path in taken.items() if named[name].trainable}
        rates = {name: multipliers.get(name, 1.0) for name in taken}
        other = [name for name in rates if not is_same_rate(rates[name], m)]
        if other:
            raise ValueError(
                f"Two variables have the path {taken[other[0]]}, but need different learning "
                f"rates: {m:.4g} and {rates[other[0]]:.4g} times the rate. An OptimizerMap tells "
                "variables apart by their paths: give the layers different names."
            )
