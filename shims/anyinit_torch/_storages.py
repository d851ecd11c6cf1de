"""The parameters of a model by storage: one leaf a storage, with every name that it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from anyinit._propagate.signal import SAMPLES, uniform_atom


@dataclasses.dataclass(frozen=True)
class View:
    """A parameter that lies in another one's storage.

    Arguments:
        tensor: the parameter.
        size: its shape.
        stride: its steps, in the row-major order of the leaf.
        offset: the place of its first element there.
    """

    tensor: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One storage that holds parameters.

    Arguments:
        names: dotted names of the parameters that are the whole of it, the first one first.
        tensor: the parameter.
        same: further parameter objects that are the same elements.
        views: parameters that show a part of it, or the whole in another layout.
        trainable: whether any of them requires a gradient.
    """

    names: tuple[str, ...]
    tensor: torch.Tensor
    same: tuple[torch.Tensor, ...]
    views: tuple[View, ...]
    trainable: bool


def find_leaves(model: torch.nn.Module) -> list[Leaf]:
    """The leaves of a model in the order of its parameters.

    Arguments:
        model: the model; tensors are told apart by the elements they hold, not by their objects.
    """
    groups: dict[object, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in named_tensors(model):
        groups.setdefault(_storage_key(tensor), []).append((name, tensor))
    return [leaf for group in groups.values() for leaf in _leaves_of(group)]


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters of a model by name, every name of a shared one.

    Arguments:
        model: the model, compiled or not: the name of the compiled wrapper is left out.
    """
    for name, tensor in model.named_parameters(remove_duplicate=False):
        yield name.replace("_orig_mod.", ""), tensor


def _storage_key(tensor: torch.Tensor) -> object:
    try:
        storage = tensor.untyped_storage()
        # Meta tensors have no address; their storage objects are told apart instead.
        return storage.data_ptr() or storage._cdata
    except (NotImplementedError, RuntimeError):
        # A sharded tensor has no storage of its own.
        return id(tensor)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last place of a tensor's elements in its storage."""
    start = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(start), int(start + sum((size - 1) * stride for size, stride in steps if size))


def _leaves_of(group: list[tuple[str, torch.Tensor]]) -> list[Leaf]:
    remaining = list(group)
    leaves = []
    while remaining:
        # The largest is the leaf; what lies inside it is a view. Among equals a dense one serves,
        # since places in the others can be told from it, then the earlier name.
        _, whole = max(remaining, key=lambda item: (item[1].numel(), _dense(item[1])))
        start, end = _extent(whole)
        inside: list[tuple[str, torch.Tensor]] = []
        outside: list[tuple[str, torch.Tensor]] = []
        for name, tensor in remaining:
            first, last = _extent(tensor)
            contained = tensor is whole or (first >= start and last <= end and _dense(whole))
            (inside if contained else outside).append((name, tensor))
        names = [name for name, tensor in inside if _same(tensor, whole)]
        objects = {id(tensor): tensor for _, tensor in inside}
        same = tuple(t for t in objects.values() if t is not whole and _same(t, whole))
        others = [t for t in objects.values() if not _same(t, whole)]
        views = tuple(_view(tensor, whole) for tensor in others)
        extra = [name for name, tensor in inside if not _same(tensor, whole)]
        trainable = any(tensor.requires_grad for tensor in objects.values())
        leaves.append(Leaf((*names, *extra), whole, same, views, trainable))
        remaining = outside
    return leaves


def _same(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    return tensor is whole or (
        tensor.shape == whole.shape
        and tensor.stride() == whole.stride()
        and tensor.storage_offset() == whole.storage_offset()
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its part of the storage without gaps."""
    return tensor.is_contiguous()


def _view(tensor: torch.Tensor, whole: torch.Tensor) -> View:
    offset = int(tensor.storage_offset() - whole.storage_offset())
    return View(tensor, tuple(tensor.shape), tuple(tensor.stride()), offset)


def is_drawn(tensor: torch.Tensor) -> bool:
    """Whether a tensor is random: several entries that are not all equal.

    Arguments:
        tensor: with storage; of any dtype.
    """
    if tensor.numel() < 2:
        return False
    taken = samples_of(tensor)
    if taken is None or taken.ndim:
        return True
    flat = tensor.detach()
    return bool((flat != flat.reshape(-1)[0]).any())


def samples_of(tensor: torch.Tensor) -> np.ndarray | None:
    """Samples of a tensor's elements, or the one number that they all equal.

    Arguments:
        tensor: any tensor.

    Returns:
        float64 array of ``anyinit._propagate.signal.SAMPLES`` entries, or of no axis where the
        entries that were looked at agree; ``None`` where the values cannot be read.
    """
    if tensor.is_meta or tensor.numel() == 0:
        return None
    places = np.unique((uniform_atom(tensor.numel()) * tensor.numel()).astype(np.int64))
    order = (uniform_atom(tensor.numel()) * tensor.numel()).astype(np.int64)
    try:
        flat = tensor.detach().reshape(-1)
        index = torch.from_numpy(places).to(flat.device)
        read = flat.index_select(0, index).to("cpu", torch.float64).numpy()
    except (NotImplementedError, RuntimeError):
        return None
    if (read == read[0]).all():
        return np.asarray(read[0])
    samples = read[np.searchsorted(places, order)]
    return samples if samples.shape == (SAMPLES,) else np.resize(samples, SAMPLES)
