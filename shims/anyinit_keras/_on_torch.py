"""The torch backend: a model's variables are torch parameters, and ``anyinit.torch`` plans them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import torch

import anyinit_torch
from anyinit._plan import Plan
from anyinit_keras._inputs import Call, is_array


class _Stateless(torch.nn.Module):
    """A Keras model as a plain module, whose parameters are its variables by name."""

    def __init__(self, model: keras.Layer, named: Mapping[str, keras.Variable]) -> None:
        super().__init__()
        self.variables = tuple(named.items())
        # In a tuple, so that the model is no submodule and its parameters have one name each.
        self.model = (model,)
        for name, variable in named.items():
            self.register_parameter(name, variable.value)

    def forward(self, x: Any, **further: Any) -> Any:
        mapping = [(variable, self._parameters[name]) for name, variable in self.variables]
        with keras.StatelessScope(state_mapping=mapping):
            return self.model[0](x, **further)


def plan_on_torch(
    model: keras.Layer,
    named: Mapping[str, keras.Variable],
    call: Call,
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
    input_moment: float,
    in_place: bool,
) -> Plan:
    """Plan a model's variables, and scale them where that is asked for.

    Arguments:
        model: a built model.
        named: its variables by name.
        call: the arguments to call it with.
        only: patterns of the variables to scale.
        skip: patterns of those to leave as drawn.
        input_moment: second moment of the float inputs.
        in_place: whether to write the planned scales.
    """
    x, further = jax.tree.map(_zeros, (call.x, dict(call.further)))
    run = anyinit_torch.init_ if in_place else anyinit_torch.plan
    # Messages name a module by its class.
    module = type(type(model).__name__, (_Stateless,), {})(model, named)
    return run(module, x, only=only, skip=skip, input_moment=input_moment, **further)


def _zeros(leaf: Any) -> Any:
    """What stands for an input: its values are not looked at."""
    return keras.ops.zeros(leaf.shape, str(leaf.dtype)) if is_array(leaf) else leaf
