"""The torch backend: a model's variables are torch parameters, and ``anyinit.torch`` plans them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import torch

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


@dataclasses.dataclass(frozen=True)
class OnTorch:
    """A model as a plain module, with what it is called on.

    Arguments:
        module: the module.
        x: its first argument.
        further: its arguments by name.
    """

    module: torch.nn.Module
    x: Any
    further: Mapping[str, Any]

    def run(self, function: Callable[..., Any], **options: Any) -> Any:
        """Call ``anyinit.torch``'s function on the module and its arguments.

        Arguments:
            function: ``plan``, ``init_`` or ``measure``.
            **options: its options.
        """
        return function(self.module, self.x, **options, **self.further)


def on_torch(
    model: keras.Layer,
    named: Mapping[str, keras.Variable],
    call: Call,
    batch: Sequence[Any] | None,
) -> OnTorch:
    """A Keras model as a module.

    Arguments:
        model: a built model.
        named: its variables by name.
        call: the arguments to call it with.
        batch: arrays for the inputs; by default zeros, whose values are not looked at.
    """
    remaining = None if batch is None else iter(batch)

    def filled(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        if remaining is None:
            return keras.ops.zeros(leaf.shape, str(leaf.dtype))
        return keras.ops.convert_to_tensor(next(remaining), str(leaf.dtype))

    x, further = jax.tree.map(filled, (call.x, dict(call.further)))
    # Messages name a module by its class.
    module = type(type(model).__name__, (_Stateless,), {})(model, named)
    return OnTorch(module, x, further)
