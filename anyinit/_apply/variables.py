"""The variables of a Flax model together with the plan that scaled them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
from flax import serialization
from jax.tree_util import DictKey

from anyinit._plan.plan import Plan


class Variables(dict[str, Any]):
    """A Flax variable dictionary that carries its plan through every JAX transformation.

    >>> variables = Variables({"params": {"kernel": 1.0}}, plan=Plan(weights=()))
    >>> doubled = jax.tree.map(lambda leaf: 2 * leaf, variables)
    >>> doubled, doubled.plan == variables.plan
    ({'params': {'kernel': 2.0}}, True)

    Only this outermost dictionary is special: ``variables["params"]`` is the plain dictionary
    that ``model.init`` returns. The plan is static auxiliary data of the pytree node, hence no
    leaf: it costs no memory on a device, is not differentiated and is not saved as an array.

    Arguments:
        collections: the collections by name, ``params`` and any others.
        plan: the plan that scaled them.
    """

    plan: Plan

    def __init__(
        self, collections: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), *, plan: Plan
    ) -> None:
        super().__init__(collections)
        self.plan = plan

    def copy(self) -> Variables:
        """A shallow copy that keeps the plan."""
        return Variables(self, plan=self.plan)

    def __or__(self, other: Any) -> Variables:  # type: ignore[override]
        """Union with further collections, which keeps the plan."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return Variables({**self, **other}, plan=self.plan)


def plan_of(params: Any, plan: Plan | None, caller: str) -> Plan:
    """The plan that belongs to these parameters: the one passed, or the one they carry.

    Arguments:
        params: what the caller of the public function passed.
        plan: what was passed as ``plan=``; it takes precedence.
        caller: name of the public function, for the error.

    Returns:
        The plan.

    Raises:
        ValueError: ``params`` carries no plan and none was passed.
        TypeError: ``plan`` is not a ``Plan``.
    """
    if plan is not None:
        if not isinstance(plan, Plan):
            raise TypeError(
                f"{caller}: plan= must be an anyinit.Plan, got {type(plan).__name__}. "
                "Read saved text with anyinit.Plan.from_json(text)."
            )
        return plan
    if isinstance(params, Variables):
        return params.plan
    raise ValueError(
        f"{caller}: got a {type(params).__name__}, which carries no plan (only what "
        "anyinit.flax.init returns does; its inner params and restored checkpoints do not). "
        "Pass plan=: anyinit.flax.plan(model, x) (of an nnx module, anyinit.nnx.plan), or "
        "anyinit.Plan.from_json(text) of a saved one."
    )


_Static = tuple[tuple[str, ...], Plan]


def _flatten(variables: Variables) -> tuple[list[Any], _Static]:
    # Sorted, as JAX does for plain dictionaries: insertion order must not change the treedef.
    keys = tuple(sorted(variables))
    return [variables[key] for key in keys], (keys, variables.plan)


def _flatten_with_keys(variables: Variables) -> tuple[list[tuple[DictKey, Any]], _Static]:
    children, static = _flatten(variables)
    return [(DictKey(key), child) for key, child in zip(static[0], children, strict=True)], static


def _unflatten(static: _Static, children: Iterable[Any]) -> Variables:
    keys, plan = static
    return Variables(zip(keys, children, strict=True), plan=plan)


def _to_state_dict(variables: Variables) -> Any:
    return serialization.to_state_dict(dict(variables))


def _from_state_dict(target: Variables, state: dict[str, Any]) -> Variables:
    return Variables(serialization.from_state_dict(dict(target), state), plan=target.plan)


jax.tree_util.register_pytree_with_keys(Variables, _flatten_with_keys, _unflatten, _flatten)
serialization.register_serialization_state(  # type: ignore[no-untyped-call]
    Variables, _to_state_dict, _from_state_dict
)
