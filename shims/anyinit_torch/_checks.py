"""What is refused, or warned of, before anything is traced or changed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anyinit import _arguments
from anyinit._arguments import check_mode
from anyinit._trace.trace import Parameter
from anyinit_torch._lowerings.lowering import abstract_value
from anyinit_torch._record import specification
from anyinit_torch._storages import Leaf

_ORDER = (
    "First tie the weights, then materialise the model (model.to_empty(device=...) and its "
    "own initialization, or construction on a real device), then call anyinit.torch.init_, and "
    "only then wrap it (FSDP, DDP, DeepSpeed)."
)


def check_call(model: Any, mode: str, input_moment: Any) -> None:
    """Refuse what is no model that Python runs, lazy ones, unknown modes, impossible moments.

    Arguments:
        model: what the caller passed as the model.
        mode: what was passed as ``mode=``.
        input_moment: what was passed as ``input_moment=``.
    """
    check_mode(mode)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"Expected a torch.nn.Module that Python runs, got the scripted module "
            f"{type(model).__name__}. Initialize the module first, then script it."
        )
    if not isinstance(model, torch.nn.Module):
        raise _arguments.not_a_model("torch", "an instance of torch.nn.Module", model)
    lazy = [
        name
        for name, tensor in model.named_parameters()
        if isinstance(tensor, torch.nn.parameter.UninitializedParameter)
    ]
    if lazy:
        raise ValueError(
            f"{lazy[0]} has no shape yet (a lazy module). Run the model once on an input, then "
            "call anyinit.torch.init_."
        )
    _arguments.check_moment(input_moment)


def check_elements(leaves: Sequence[Leaf]) -> None:
    """Refuse parameters without elements.

    Arguments:
        leaves: the parameters by storage.
    """
    empty = [leaf.names[0] for leaf in leaves if leaf.tensor.numel() == 0]
    if empty:
        raise ValueError(
            f"{_some(empty)} has no elements here: it is an empty shard of a partitioned model "
            f"(ZeRO-3, FSDP), or was never filled. {_ORDER}"
        )


def check_drawn(model: torch.nn.Module, parameters: Sequence[Parameter]) -> None:
    """Refuse a model in which there is nothing to scale.

    Arguments:
        model: the model.
        parameters: all its parameters.
    """
    if not any(parameter.drawn for parameter in parameters):
        raise ValueError(
            f"{type(model).__name__} has no drawn weight: got {len(parameters)} parameters, all "
            "constant, expected at least one with different entries. There is nothing to scale."
        )


def check_materialised(leaves: Sequence[Leaf]) -> None:
    """Refuse tensors without values, where values are to be changed.

    Arguments:
        leaves: the parameters by storage.
    """
    meta = [leaf.names[0] for leaf in leaves if leaf.tensor.is_meta]
    if meta:
        raise ValueError(
            f"{_some(meta)} is on the meta device and has no values to scale; nothing was "
            f"changed. {_ORDER} anyinit.torch.plan works on the meta device."
        )


def check_inputs(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse float inputs without elements.

    Arguments:
        tensors: the tensors among the inputs.
    """
    _arguments.check_inputs([abstract_value(*specification(tensor)) for tensor in tensors])


def split_ties(model: torch.nn.Module, leaves: Sequence[Leaf]) -> list[tuple[str, str]]:
    """Names of tensors that a model declares tied but stores apart; each pair is warned of.

    Arguments:
        model: the model; ``_tied_weights_keys`` of it and of its parts is what is read.
        leaves: its parameters by storage.
    """
    owner = {name: number for number, leaf in enumerate(leaves) for name in leaf.names}
    split = [
        (tied, source)
        for tied, source in dict.fromkeys(_declared_ties(model))
        if tied in owner and source in owner and owner[tied] != owner[source]
    ]
    for tied, source in split:
        warnings.warn(
            f"{tied} and {source} are declared tied, but their tensors are stored apart "
            "(after to_empty() or load_state_dict(assign=True)): they are treated as two "
            "weights. Call model.tie_weights() first if they are to be one.",
            UserWarning,
            stacklevel=4,
        )
    return split


def _declared_ties(model: torch.nn.Module) -> list[tuple[str, str]]:
    """Pairs of names that are to share a tensor, as Hugging Face models declare them."""
    found = []
    wanted = getattr(getattr(model, "config", None), "tie_word_embeddings", True)
    for prefix, module in model.named_modules():
        declared = getattr(module, "_tied_weights_keys", None)
        dotted = f"{prefix}." if prefix else ""
        if isinstance(declared, Mapping):
            found += [(dotted + tied, dotted + source) for tied, source in declared.items()]
        elif declared:
            table = _input_table(module)
            if table is not None:
                found += [(dotted + tied, dotted + table) for tied in declared]
    return found if wanted else []


def _input_table(module: torch.nn.Module) -> str | None:
    """Name of a module's input embedding, where it tells."""
    read = getattr(module, "get_input_embeddings", None)
    table = read() if callable(read) else None
    weight = getattr(table, "weight", None)
    return next((name for name, tensor in module.named_parameters() if tensor is weight), None)


def _some(names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{more}"
