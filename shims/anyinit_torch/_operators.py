"""Names of torch operators, and of the functional form of those that write in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# In-place operators whose functional form has another name.
_FUNCTIONAL = {
    "bernoulli_.float": "bernoulli.p",
    "__iand__.Tensor": "bitwise_and.Tensor",
    "__iand__.Scalar": "bitwise_and.Scalar",
    "__ior__.Tensor": "bitwise_or.Tensor",
    "__ior__.Scalar": "bitwise_or.Scalar",
    "_index_put_impl_.default": "index_put.default",
}

# In-place operators that change a tensor's shape, not its elements.
RESHAPING = frozenset(
    "unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_ detach_ as_strided_".split()
)


def operator_name(func: Any) -> str:
    """``name.overload`` of an ATen operator, with the namespace for any other.

    Arguments:
        func: a ``torch._ops.OpOverload``.
    """
    namespace, _, name = func._schema.name.partition("::")
    name = f"{name}.{func._schema.overload_name or 'default'}"
    return name if namespace == "aten" else f"{namespace}.{name}"


def functional_name(name: str, schema: Any, is_lowered: Callable[[str], bool]) -> str:
    """The name of the operator that returns what this one writes.

    Arguments:
        name: from ``operator_name``.
        schema: the operator's schema.
        is_lowered: whether a name has a lowering.
    """
    if not schema.is_mutable:
        return name
    if name in _FUNCTIONAL:
        return _FUNCTIONAL[name]
    stem, _, overload = name.rpartition(".")
    bare = stem.removesuffix("_") if not stem.endswith("__") else stem
    if "out" in overload:
        candidates = [overload.removesuffix("_out"), "default", "Tensor", "dim", "start_step"]
    else:
        candidates = [overload, "default", "Tensor", "Scalar", "int"]
    for candidate in candidates:
        if is_lowered(f"{bare}.{candidate}"):
            return f"{bare}.{candidate}"
    return f"{bare}.{candidates[0]}"


def written(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that an operator writes to.

    Arguments:
        schema: the operator's schema.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    found = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found
