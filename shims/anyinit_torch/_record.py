"""Records a forward pass as functional operator calls, on fake tensors or on real ones.

Composite operators (``linear``, ``layer_norm``, ``scaled_dot_product_attention``, ``lstm``) are
caught before torch takes them apart: below autograd they arrive whole. One run of the model under
a dispatch mode is all that it takes, which is several times cheaper than ``torch.export``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from anyinit_torch._aliases import Cell, Specification, Step, ViewPlace, read, write
from anyinit_torch._dtypes import analysed_dtype
from anyinit_torch._operators import RESHAPING, functional_name, operator_name, written
from anyinit_torch._program import Call, Program, Value, live_calls
from anyinit_torch._source_line import executed_line


def specification(tensor: torch.Tensor) -> Specification:
    """Shape and dtype of a tensor as the analysis sees it."""
    return tuple(tensor.shape), analysed_dtype(tensor.dtype)


class Recorder(TorchDispatchMode):
    """A dispatch mode that records what is executed under it.

    Arguments:
        is_lowered: whether an operator has a lowering; others are taken apart where torch can.
        original: for a fake tensor that stands for a buffer, the buffer.
    """

    def __init__(
        self,
        is_lowered: Callable[[str], bool],
        original: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_lowered = is_lowered
        self._original = original
        self._calls: list[Call] = []
        self._shapes: list[tuple[int, ...]] = []
        self._dtypes: list[np.dtype[Any]] = []
        self._constants: dict[int, torch.Tensor] = {}
        self._places: Any = WeakTensorKeyDictionary()
        self._where = ""

    def enter(self, spec: Specification, tensors: Iterable[torch.Tensor]) -> int:
        """A new value for a parameter or input, held by each of the given tensors."""
        value = self._value(spec)
        cell = Cell(value, spec)
        for tensor in tensors:
            self._places[tensor] = ViewPlace(cell, (), value, 0)
        return value

    def enter_view(self, value: int, tensors: Iterable[torch.Tensor], step: Step) -> None:
        """Give tensors the elements of a view of an entered value."""
        cell = Cell(value, (self._shapes[value], self._dtypes[value]))
        for tensor in tensors:
            self._places[tensor] = ViewPlace(cell, (step,), value, -1)

    def finish(
        self, parameters: tuple[int, ...], inputs: tuple[int, ...], results: list[torch.Tensor]
    ) -> Program:
        """The recording up to the given results."""
        outputs = tuple(self._read(tensor) for tensor in results)
        return Program(
            live_calls(self._calls, outputs),
            tuple(self._shapes),
            tuple(self._dtypes),
            self._constants,
            parameters,
            inputs,
            outputs,
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Execute an operator and append its call."""
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            # A higher-order operator has no schema: one opaque operator with tensor arguments.
            results = func(*args, **kwargs)
            self._where = executed_line()
            self._append(str(func), args, (self._given(list(_tensors(args))), {}), results)
            return results
        if func.namespace == "prim":
            return func(*args, **kwargs)
        name = operator_name(func)
        schema = func._schema
        functional = functional_name(name, schema, self._is_lowered)
        if not self._is_lowered(functional) and func._can_decompose():
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        self._where = executed_line()
        if schema.is_mutable:
            return self._mutate(func, functional, args, kwargs)
        given = self._given((args, kwargs))
        results = _executed(func, name, args, kwargs)
        self._append(functional, args, given, results)
        return results

    def _append(self, name: str, args: tuple[Any, ...], given: Any, results: Any) -> None:
        """Record a call and give each of its results a place."""
        listed = list(results) if isinstance(results, (tuple, list)) else [results]
        tensors = [r if isinstance(r, torch.Tensor) else None for r in listed]
        if not any(tensor is not None for tensor in tensors):
            return
        specs = [None if tensor is None else specification(tensor) for tensor in tensors]
        numbers = self._emit(name, given[0], given[1], specs)
        source = next((a for a in args if isinstance(a, torch.Tensor)), None)
        several = isinstance(results, (tuple, list))
        for position, (tensor, number) in enumerate(zip(tensors, numbers, strict=True)):
            if tensor is None:
                continue
            if source is not None and _share(tensor, source):
                if tensor is source:
                    continue
                place = self._place(source)
                step = Step(
                    name,
                    given[0][1:],
                    given[1],
                    tuple(spec for spec in specs if spec is not None),
                    position if several else None,
                )
                self._places[tensor] = ViewPlace(
                    place.cell, (*place.steps, step), number, place.cell.version
                )
            else:
                spec = specs[position]
                assert spec is not None
                self._places[tensor] = ViewPlace(Cell(number, spec), (), number, 0)

    def _mutate(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """An operator that writes into its arguments: its functional form, then the writes."""
        given = self._given((args, kwargs))
        if func._schema.name.rpartition("::")[2] in RESHAPING:
            return self._reshape(func, name, args, kwargs, given)
        targets = written(func._schema, args, kwargs)
        results = func(*args, **kwargs)
        named = {
            key: value
            for key, value in given[1].items()
            if not any(kwargs[key] is t for t in targets)
        }
        outputs: list[Specification | None] = [specification(target) for target in targets]
        returned = results if isinstance(results, (tuple, list)) else [results]
        fresh = [
            r
            for r in returned
            if isinstance(r, torch.Tensor) and not any(r is target for target in targets)
        ]
        if fresh:
            # Statistics are updated on the side: only what is returned matters to the output.
            self._append(name, args, given, results)
            return results
        numbers = self._emit(name, given[0], named, outputs)
        for target, number in zip(targets, numbers, strict=True):
            write(self._place(target), number, self._emit)
        return results

    def _reshape(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any
    ) -> Any:
        tensor = args[0]
        place = self._place(tensor)
        results = func(*args, **kwargs)
        spec = specification(tensor)
        (number,) = self._emit(name, given[0], given[1], [spec])
        step = Step(name, given[0][1:], given[1], (spec,))
        self._places[tensor] = ViewPlace(
            place.cell, (*place.steps, step), number, place.cell.version
        )
        return results

    def _given(self, arguments: Any) -> Any:
        """Arguments with a value in the place of each tensor."""
        if isinstance(arguments, torch.Tensor):
            return Value(self._read(arguments))
        if isinstance(arguments, (tuple, list)):
            return tuple(self._given(argument) for argument in arguments)
        if isinstance(arguments, Mapping):
            return {key: self._given(argument) for key, argument in arguments.items()}
        return arguments

    def _place(self, tensor: torch.Tensor) -> ViewPlace:
        place: ViewPlace | None = self._places.get(tensor)
        if place is None:
            value = self._value(specification(tensor))
            original = self._original(tensor)
            self._constants[value] = tensor if original is None else original
            place = ViewPlace(Cell(value, specification(tensor)), (), value, 0)
            self._places[tensor] = place
        return place

    def _read(self, tensor: torch.Tensor) -> int:
        return read(self._place(tensor), self._emit)

    def _value(self, spec: Specification) -> int:
        shape, dtype = spec
        self._shapes.append(shape)
        self._dtypes.append(dtype)
        return len(self._shapes) - 1

    def _emit(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        specs: list[Specification | None],
    ) -> list[Any]:
        numbers = [None if spec is None else self._value(spec) for spec in specs]
        self._calls.append(Call(name, tuple(args), kwargs, tuple(numbers), self._where))
        return numbers


def _executed(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator, where a fake tensor stands in the way of what real ones can do."""
    if name == "_grouped_mm.default" and isinstance(args[0], FakeTensor):
        # On fake tensors torch accepts this dtype alone; on a processor it takes all.
        narrow = [
            a.bfloat16() if isinstance(a, FakeTensor) and a.is_floating_point() else a for a in args
        ]
        return func(*narrow, **kwargs).to(args[0].dtype)
    if name == "embedding.default" and args[1].is_floating_point():
        # Fake tensors take such indices before torch 2.13; real ones never did.
        raise TypeError(f"an embedding is indexed with integers, got {args[1].dtype}")
    return func(*args, **kwargs)


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _tensors(item)


def _share(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a result lies in the storage of what it was computed from."""
    if tensor is source:
        return True
    try:
        return bool(tensor.untyped_storage()._cdata == source.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        # Sparse and other tensors without a storage of their own.
        return False
