"""Captures a model's forward pass: on fake tensors, or on real ones where values decide."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from anyinit_torch._aliases import Step
from anyinit_torch._dtypes import analysed_dtype
from anyinit_torch._inputs import map_tensors, output_tensors, tensors_in
from anyinit_torch._isolation import isolated
from anyinit_torch._program import Program
from anyinit_torch._record import Recorder, specification
from anyinit_torch._replay import is_lowered
from anyinit_torch._source_line import raising_line
from anyinit_torch._storages import Leaf


@dataclasses.dataclass(frozen=True)
class Capture:
    """A captured forward pass.

    Arguments:
        program: the recording.
        real: why the model had to be run on its real values, or ``None`` where it was not.
        where: ``file.py:line`` of the model that asked for values.
    """

    program: Program
    real: str | None
    where: str = ""


def capture(
    model: torch.nn.Module,
    leaves: Sequence[Leaf],
    computed: Mapping[torch.nn.Module, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Capture:
    """Record a model's forward pass; the model itself is as before afterwards.

    Arguments:
        model: the model, in the mode (train or eval) in which it is to be analysed.
        leaves: its parameters by storage, and the computed weights.
        computed: by parametrization, the weight that stands for what it computes.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.

    Raises:
        ValueError: if forward rejects the arguments, or needs values that nothing here has.
    """
    try:
        with _unlogged():
            return Capture(_on_fakes(model, leaves, computed, args, kwargs), None)
    except Exception as error:
        # Whatever fails on fake tensors may do so for want of values: the real run decides.
        first = error
    has_values = not any(
        tensor.is_meta
        for tensor in (*model.parameters(), *model.buffers(), *tensors_in((args, dict(kwargs))))
    )
    if not has_values:
        raise ValueError(
            f"The forward pass of {type(model).__name__} failed{_at(first)}: {_summary(first)}. "
            "The model or an input is on the meta device, so no values are there to decide what "
            "depends on values. Check the inputs, or plan the model on a real device."
        ) from first
    try:
        program = _on_values(model, leaves, computed, args, kwargs)
    except Exception as error:
        raise ValueError(
            f"The forward pass of {type(model).__name__} rejects these inputs{_at(error)}: "
            f"{_summary(error)}. Pass what model(...) takes; nothing was changed."
        ) from error
    return Capture(program, _summary(first), raising_line(first.__traceback__))


def _at(error: BaseException) -> str:
    line = raising_line(error.__traceback__)
    return f" at {line}" if line else ""


def _summary(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _on_fakes(
    model: torch.nn.Module,
    leaves: Sequence[Leaf],
    computed: Mapping[torch.nn.Module, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Program:
    """Run on tensors without data, each with the shape, dtype and device of what it stands for."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    device = next((t.device for t in model.parameters() if not t.is_meta), torch.device("cpu"))
    fakes: dict[int, torch.Tensor] = {}
    originals: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            if tensor.is_meta:
                with mode:
                    made = torch.empty_strided(
                        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
                    )
            else:
                made = mode.from_tensor(tensor, static_shapes=True)
            fakes[id(tensor)] = made
            originals[id(made)] = tensor
        return fakes[id(tensor)]

    def original(tensor: torch.Tensor) -> torch.Tensor | None:
        return originals.get(id(tensor))

    given, named = map_tensors(fake, (args, dict(kwargs)))
    recorder = Recorder(is_lowered, original)
    return _run(recorder, model, leaves, computed, (args, dict(kwargs)), given, named, fake, mode)


def _on_values(
    model: torch.nn.Module,
    leaves: Sequence[Leaf],
    computed: Mapping[torch.nn.Module, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Program:
    """Run once on the values; copies of buffers and inputs take what the model writes."""
    parameters = {id(tensor) for tensor in (*model.parameters(), *computed.values())}
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in parameters:
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone()
        return copies[id(tensor)]

    given, named = map_tensors(copy, (args, dict(kwargs)))
    recorder = Recorder(is_lowered, lambda tensor: None)
    with torch.random.fork_rng(devices=[]):
        return _run(
            recorder,
            model,
            leaves,
            computed,
            (args, dict(kwargs)),
            given,
            named,
            copy,
            contextlib.nullcontext(),
        )


def _run(
    recorder: Recorder,
    model: torch.nn.Module,
    leaves: Sequence[Leaf],
    computed: Mapping[torch.nn.Module, torch.Tensor],
    inputs: Any,
    args: Any,
    kwargs: Any,
    substitute: Callable[[torch.Tensor], torch.Tensor],
    mode: contextlib.AbstractContextManager[Any],
) -> Program:
    parameters = []
    for leaf in leaves:
        own = (leaf.tensor, *leaf.same)
        # The parameters themselves too: nn.LSTM keeps them in a list beside the registered ones.
        tensors = {id(t): t for tensor in own for t in (tensor, substitute(tensor))}
        value = recorder.enter(specification(leaf.tensor), tensors.values())
        parameters.append(value)
        for view in leaf.views:
            spec = (view.size, analysed_dtype(view.tensor.dtype))
            step = Step("as_strided.default", (view.size, view.stride, view.offset), {}, (spec,))
            recorder.enter_view(value, [substitute(view.tensor)], step)
    entered = {id(tensor): tensor for tensor in tensors_in(inputs)}
    inner = {id(t) for leaf in leaves for t in (leaf.tensor, *leaf.same)}
    values = tuple(
        recorder.enter(specification(tensor), [substitute(tensor)])
        for key, tensor in entered.items()
        if key not in inner
    )
    with isolated(model, substitute), _quiet(), torch.inference_mode(), mode, recorder:
        for module, tensor in computed.items():
            vars(module)["forward"] = functools.partial(substitute, tensor)
        output = model(*args, **kwargs)
        results = output_tensors(output)
        return recorder.finish(tuple(parameters), values, results)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Compiled functions run as they are written, and attention without its fused fast path."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Importing the compiler takes seconds: it is asked for nothing unless it is there.
        if "torch._dynamo" in sys.modules:
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """What fails on fake tensors is tried again or raised: torch's own log would only repeat it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = disabled
