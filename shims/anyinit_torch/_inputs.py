"""The tensors among a model's inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Outputs that repeat what is inside the model: states kept for later calls, and inner signals.
_INNER = frozenset(
    """past_key_values cross_attentions attentions hidden_states encoder_hidden_states
    decoder_hidden_states encoder_attentions decoder_attentions encoder_last_hidden_state
    cache_params state router_logits reshaped_hidden_states mems""".split()
)


def map_tensors(function: Callable[[torch.Tensor], Any], argument: Any) -> Any:
    """Replace every tensor in nested tuples, lists, mappings and dataclasses.

    >>> map_tensors(lambda tensor: tuple(tensor.shape), [torch.zeros(2, 3), {"mask": None}])
    [(2, 3), {'mask': None}]

    Arguments:
        function: called with each tensor.
        argument: what is passed to a model, or any part of it.
    """
    if isinstance(argument, torch.Tensor):
        return function(argument)
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        return type(argument)(*(map_tensors(function, item) for item in argument))
    if type(argument) in (tuple, list):
        return type(argument)(map_tensors(function, item) for item in argument)
    if type(argument) is dict:
        return {key: map_tensors(function, item) for key, item in argument.items()}
    if isinstance(argument, Mapping) and hasattr(argument, "copy"):
        copy = argument.copy()
        for key, item in argument.items():
            copy[key] = map_tensors(function, item)
        return copy
    if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        changed = {
            field.name: map_tensors(function, getattr(argument, field.name))
            for field in dataclasses.fields(argument)
            if field.init
        }
        return dataclasses.replace(argument, **changed)
    return argument


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """The tensors of nested containers, in order.

    Arguments:
        argument: as for ``map_tensors``.
    """
    found: list[torch.Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, argument)  # type: ignore[func-returns-value]
    return found


def output_tensors(output: Any) -> list[torch.Tensor]:
    """The results of a model that are signals: of an output with names, those at its top.

    Arguments:
        output: what ``forward`` has returned.
    """
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        named = dict(output)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        named = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
    elif isinstance(output, (tuple, list)):
        return [tensor for item in output for tensor in output_tensors(item)]
    else:
        return []
    top = [
        value
        for name, value in named.items()
        if isinstance(value, torch.Tensor) and name not in _INNER
    ]
    return top or [tensor for value in named.values() for tensor in output_tensors(value)]
