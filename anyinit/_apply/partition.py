"""Learning rates: one label for each rate multiplier, and an optax partition over them."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import optax

from anyinit._apply.match import mismatch
from anyinit._apply.variables import plan_of
from anyinit._leaf_names import named_leaves
from anyinit._plan.plan import Plan
from anyinit._plan.rates import REST, rate_labels


def optax_labels(params: Any, *, plan: Plan | None = None) -> Any:
    """Label every parameter by its learning-rate multiplier, for a partition of one's own.

    >>> from anyinit import LeftAlone, Plan, Reason, WeightPlan
    >>> row = WeightPlan(
    ...     path="wte", shape=(50, 16), dtype="float32", roles=("lookup", "readout"),
    ...     site="output", where="", fan=16, moment_in=1.0, c=0.25, target=1.0, at_most=False,
    ...     std_before=0.25, sigma=1.0, m=4.0,
    ... )
    >>> plan = Plan(weights=(row,), left_alone=(LeftAlone("bias", Reason.CONSTANT),))
    >>> optax_labels({"params": {"wte": 0.0, "bias": 0.0}}, plan=plan)
    {'params': {'bias': 'rest', 'wte': 'table'}}

    Arguments:
        params: the whole variables or the inner ``params``, in any container. Values are never
            looked at.
        plan: the plan; needed where ``params`` is not what ``anyinit.flax.init`` returned.

    Returns:
        A tree of the same structure: ``"table"`` for a tied table whose multiplier m is not 1,
        ``"scaled"`` for any other such weight, ``"table:2"``, ``"scaled:2"`` … for further values
        of m, the largest leaf's first, and ``"rest"`` for everything else.

    Raises:
        ValueError: ``params`` carries no plan, or has parameters that the plan does not know.
    """
    plan = plan_of(params, plan, "optax_labels")
    return _labelled(params, plan, rate_labels(plan)[0])


def optax_partition(
    params: Any,
    optimizer: Callable[..., optax.GradientTransformation] = optax.adamw,
    *,
    plan: Plan | None = None,
    learning_rate: Any = 1e-3,
    **hyperparameters: Any,
) -> optax.GradientTransformation:
    """Make an optimizer that gives each weight its own multiple m of the learning rate.

    >>> import jax.numpy as jnp
    >>> from anyinit import Plan, WeightPlan
    >>> row = WeightPlan(
    ...     path="wte", shape=(50, 16), dtype="float32", roles=("lookup", "readout"),
    ...     site="output", where="", fan=16, moment_in=1.0, c=0.25, target=1.0, at_most=False,
    ...     std_before=0.25, sigma=1.0, m=4.0,
    ... )
    >>> params, plan = {"wte": jnp.zeros((50, 16))}, Plan(weights=(row,))
    >>> optimizer = optax_partition(params, optax.lion, plan=plan, learning_rate=0.5)
    >>> gradients = {"wte": jnp.ones((50, 16))}
    >>> updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    >>> float(updates["wte"][0, 0])
    -2.0

    Clip gradients outside the partition, since inside it each label is clipped by its own norm:
    ``optax.chain(optax.clip_by_global_norm(1.0), optimizer)``. Decoupled weight decay is
    multiplied by the label's rate, as in ``optax.adamw``. The multiple m = 1/c is that of
    optimizers whose step does not depend on the gradient's scale (Adam, Lion and their kin).

    Arguments:
        params: the whole variables or the inner ``params``, in any container. Only its names
            count: the optimizer then works on either form, and on their gradients.
        optimizer: a function such as ``optax.adamw`` that takes ``learning_rate``.
        plan: the plan; needed where ``params`` is not what ``anyinit.flax.init`` returned.
        learning_rate: a number, or a schedule (a function of the step count) of numbers.
        **hyperparameters: passed on to ``optimizer``.

    Returns:
        An ``optax.partition`` of one optimizer a label (see ``optax_labels``).

    Raises:
        ValueError: ``params`` carries no plan, or has parameters that the plan does not know.
        TypeError: ``optimizer`` cannot be called with these arguments.

    Source: rates under a constant factor: Yang et al. 2022, Tensor Programs V,
    https://arxiv.org/abs/2203.03466, lemma J.1.
    """
    plan = plan_of(params, plan, "optax_partition")
    _check_call(optimizer, learning_rate, hyperparameters)
    labels, multipliers = rate_labels(plan)
    _labelled(params, plan, labels)  # another model's parameters are refused here already
    optimizers: dict[Hashable, optax.GradientTransformation] = {
        label: optimizer(learning_rate=_times(m, learning_rate), **hyperparameters)
        for label, m in multipliers.items()
    }
    return optax.partition(optimizers, lambda tree: _labelled(tree, plan, labels))


def _labelled(tree: Any, plan: Plan, labels: Mapping[str, str]) -> Any:
    leaves, treedef = named_leaves(tree, plan.known_names)
    found = mismatch(plan, leaves)
    # Missing weights are no fault here: a frozen or masked part of the tree has no gradient.
    if found.unexpected:
        raise ValueError(
            "these parameters do not belong to this plan, so they have no label.\n  "
            + "\n  ".join(found.lines())
            + "\nPass the plan of the model that they belong to as plan=, for example "
            "anyinit.flax.plan(model, x)."
        )
    return treedef.unflatten(labels.get(leaf.name, REST) for leaf in leaves)


def _times(m: float, learning_rate: Any) -> Any:
    if m == 1.0:
        return learning_rate
    if callable(learning_rate):
        return lambda count: m * learning_rate(count)
    return m * learning_rate


def _check_call(optimizer: Any, learning_rate: Any, hyperparameters: Mapping[str, Any]) -> None:
    if not callable(optimizer):
        raise TypeError(
            f"optax_partition: optimizer must be a function such as optax.adamw, got a "
            f"{type(optimizer).__name__}. An optimizer that is already built has its learning "
            "rate inside: pass the function, and learning_rate= and its other arguments by name."
        )
    is_number = isinstance(learning_rate, numbers.Real) and not isinstance(learning_rate, bool)
    is_scalar_array = getattr(learning_rate, "shape", None) == ()
    if not (callable(learning_rate) or is_number or is_scalar_array):
        raise TypeError(
            "optax_partition: learning_rate must be a number or a schedule (a function of the "
            f"step count), got {learning_rate!r}."
        )
    name = getattr(optimizer, "__name__", repr(optimizer))
    try:
        signature = inspect.signature(optimizer)
    except ValueError:
        return  # a built-in callable shows no signature: let the call itself speak
    try:
        signature.bind(learning_rate=learning_rate, **hyperparameters)
    except TypeError as error:
        raise TypeError(
            f"optax_partition: {name} cannot be called with learning_rate= and "
            f"{', '.join(hyperparameters) or 'nothing else'}: {error}. It takes "
            f"{', '.join(signature.parameters)}. The learning rate is passed as learning_rate=, "
            "a number or a schedule, and optimizer must take it by that name."
        ) from error
