"""Runs a model with other tensors in the place of its own, and puts everything back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_CONTAINERS = (dict, list)


@contextlib.contextmanager
def isolated(
    model: torch.nn.Module, replace: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Replace parameters and buffers for a while; attributes set meanwhile are undone.

    Arguments:
        model: the model; nothing of it is different afterwards, whatever happens inside.
        replace: gives the tensor to use in the place of a parameter or buffer.
    """
    kept = [(module, _snapshot(module)) for module in model.modules()]
    try:
        for module, _ in kept:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = replace(tensor)  # type: ignore[assignment]
        yield
    finally:
        for module, snapshot in kept:
            _restore(module, snapshot)


def _snapshot(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Every attribute, with a copy of its contents where it is a plain container."""
    return {
        name: (value, value.copy() if type(value) in _CONTAINERS else None)
        for name, value in vars(module).items()
    }


def _restore(module: torch.nn.Module, snapshot: dict[str, tuple[Any, Any]]) -> None:
    attributes = vars(module)
    for name in attributes.keys() - snapshot.keys():
        del attributes[name]
    for name, (value, contents) in snapshot.items():
        attributes[name] = value
        if contents is not None:
            value.clear()
            value.extend(contents) if isinstance(value, list) else value.update(contents)
