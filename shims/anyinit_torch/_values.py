"""A recorded model's tensors as arrays that its graph can be run on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch

from anyinit._plan.plan import Plan
from anyinit_torch._dtypes import analysed_dtype
from anyinit_torch._inputs import tensors_in
from anyinit_torch._planning import Planning
from anyinit_torch._rescale import root_mean_square


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Whatever JAX runs inside is run on the processor."""
    return jax.default_device(jax.devices("cpu")[0])


def array_of(tensor: torch.Tensor, factor: float = 1.0) -> np.ndarray:
    """A tensor's values with the dtype that it has in the analysis.

    >>> array_of(torch.tensor([1, 2])).dtype
    dtype('int32')

    Arguments:
        tensor: on any device; it is not changed.
        factor: what to multiply it with.
    """
    plain = tensor.detach().to("cpu")
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        plain = plain.to(torch.float32)
    array = plain.resolve_conj().resolve_neg().contiguous().numpy()
    array = array if factor == 1.0 else array * np.asarray(factor, array.dtype)
    return array.astype(analysed_dtype(tensor.dtype), copy=False)


def values_of(
    planning: Planning, args: tuple[Any, ...], kwargs: Mapping[str, Any], plan: Plan | None = None
) -> tuple[list[Any], list[Any]]:
    """The arrays of the graph's parameters, and of its other inputs, with a fixed key.

    Arguments:
        planning: the analysed model.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        plan: the scales to give the parameters; by default they enter as they are.
    """
    rows = {} if plan is None else plan.weight_by_name
    leaves = []
    for leaf in planning.leaves:
        row = rows.get(leaf.names[0])
        rms = 0.0 if row is None else root_mean_square(leaf.tensor)
        factor = float(row.sigma) / rms if row is not None and rms > 0 else 1.0  # type: ignore[arg-type]
        leaves.append(array_of(leaf.tensor, factor))
    leaves += [array_of(tensor) for tensor in planning.sampled]
    inner = {id(tensor) for leaf in planning.leaves for tensor in (leaf.tensor, *leaf.same)}
    given = {id(tensor): tensor for tensor in tensors_in((args, dict(kwargs)))}
    inputs = [array_of(tensor) for key, tensor in given.items() if key not in inner]
    return leaves, [jax.random.key(0), *inputs]
