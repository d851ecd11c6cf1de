"""From a captured model to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
import torch

from anyinit._arguments import selection
from anyinit._findings import Finding, Kind, Reason
from anyinit._plan.analysis import Analysis, examine
from anyinit._plan.plan import LeftAlone, Plan
from anyinit._propagate.signal import SAMPLES
from anyinit._trace.existing import has_few_numbers
from anyinit._trace.trace import Parameter, trace
from anyinit_torch._capture import Capture
from anyinit_torch._dtypes import analysed_dtype
from anyinit_torch._lowerings.lowering import abstract_value
from anyinit_torch._program import Program, values_in
from anyinit_torch._replay import replay
from anyinit_torch._storages import Leaf, is_drawn, samples_of

# Constants up to this many elements enter with all their values, larger ones as samples.
_LITERAL = 1 << 20


def describe(leaf: Leaf) -> Parameter:
    """What the analysis knows of a leaf.

    On the meta device there are no values: what has one axis counts as a constant gain (ones) or
    bias (zeros) by its name, all else as drawn.

    Arguments:
        leaf: the leaf.
    """
    tensor, array = leaf.tensor, None
    shape, dtype = tuple(tensor.shape), analysed_dtype(tensor.dtype)
    if tensor.is_meta:
        drawn = tensor.ndim > 1
        samples = None if drawn else np.asarray(0.0 if "bias" in leaf.names[0] else 1.0)
    else:
        drawn, samples = is_drawn(tensor), samples_of(tensor)
        if drawn and tensor.ndim == 1 and tensor.numel() <= SAMPLES:
            numbers = _array(tensor, np.dtype(np.float64))
            if numbers is not None and has_few_numbers(numbers):
                drawn, array = False, numbers
    named = np.dtype(np.float64) if tensor.dtype == torch.float64 else dtype
    names = leaf.names
    return Parameter(names[0], "params", shape, named, drawn, samples, names[1:], array)


def selected(
    parameters: Sequence[Parameter],
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
) -> Callable[[str], bool]:
    """Whether a parameter is to be scaled; a pattern may match any of its names.

    Arguments:
        parameters: all parameters of the model.
        only: patterns of what to scale, ``None`` for everything.
        skip: patterns of what to leave.
    """
    names = {p.name: (p.name, *p.aliases) for p in parameters if p.drawn}
    every = [alias for aliases in names.values() for alias in aliases]
    wanted, kept = selection(every, only, None), selection(every, None, skip)
    return lambda name: (
        any(map(wanted, names.get(name, (name,)))) and all(map(kept, names.get(name, (name,))))
    )


@dataclasses.dataclass(frozen=True)
class Planning:
    """An analysed model.

    Arguments:
        analysis: the analysis.
        captured: the recording.
        leaves: the model's parameters by storage, and the computed weights.
        sampled: constants that enter as parameters.
        split: pairs of names that are declared tied but stored apart.
        computed: names of the computed weights.
    """

    analysis: Analysis
    captured: Capture
    leaves: Sequence[Leaf]
    sampled: Sequence[torch.Tensor]
    split: Sequence[tuple[str, str]]
    computed: Sequence[str]

    def finished(self, plan: Plan) -> Plan:
        """A plan of the analysis in torch's terms, with every parameter listed."""
        own = {leaf.names[0] for leaf in self.leaves} - set(self.computed)
        frozen = {leaf.names[0] for leaf in self.leaves if not leaf.trainable}
        left = [_reasoned(row, frozen, self.computed) for row in plan.left_alone if row.path in own]
        findings = [*plan.findings, *_findings(self.captured, self.leaves, self.split)]
        return dataclasses.replace(plan, left_alone=tuple(left), findings=tuple(findings))


def analysed(
    captured: Capture,
    leaves: Sequence[Leaf],
    chosen: Callable[[str], bool],
    input_moment: float,
    split: Sequence[tuple[str, str]],
    computed: Sequence[str],
) -> Planning:
    """Analyse a captured model.

    Arguments:
        captured: the recording.
        leaves: its parameters by storage, and the computed weights.
        chosen: whether the caller wants a parameter to be scaled.
        input_moment: second moment of the float inputs.
        split: pairs of names that are declared tied but stored apart.
        computed: names of the computed weights.
    """
    program = captured.program
    parameters = [describe(leaf) for leaf in leaves]
    literals, sampled = _constants(program)
    every = [*parameters, *(parameter for _, parameter in sampled)]
    abstract = [
        abstract_value(p.shape, np.dtype(np.float32) if p.dtype == np.float64 else p.dtype)
        for p in every
    ]
    inputs = [
        abstract_value(program.shapes[value], program.dtypes[value]) for value in program.inputs
    ]
    key = jax.eval_shape(lambda: jax.random.key(0))
    count = len(parameters)

    def forward(values: Sequence[Any], given: Any) -> list[Any]:
        key, arrays = given
        constants = dict(literals)
        constants.update(zip((value for value, _ in sampled), values[count:], strict=True))
        return replay(program, values[:count], arrays, constants, key)

    with jax.numpy_dtype_promotion("standard"):
        traced = trace(forward, every, abstract, (key, inputs), input_moment)
    frozen = {p.name for p, leaf in zip(parameters, leaves, strict=True) if not leaf.trainable}
    analysis = examine(traced, lambda name: name not in frozen and chosen(name))
    tensors = [program.constants[value] for value, _ in sampled]
    return Planning(analysis, captured, leaves, tensors, split, computed)


def _reasoned(row: LeftAlone, frozen: Set[str], computed: Sequence[str]) -> LeftAlone:
    """The reason in torch's terms: what is frozen, and what a parametrization reads."""
    if row.path in frozen and row.reason is Reason.SKIPPED:
        return dataclasses.replace(row, reason=Reason.FROZEN)
    if row.reason is Reason.UNUSED and any(row.path.startswith(f"{name}.") for name in computed):
        return dataclasses.replace(row, reason=Reason.NONLINEAR)
    return row


def _findings(
    captured: Capture, leaves: Sequence[Leaf], split: Sequence[tuple[str, str]]
) -> list[Finding]:
    found = [Finding(Kind.SPLIT_TIE, tied, detail=source) for tied, source in split]
    if captured.real is not None:
        found.append(Finding(Kind.ROUTE, "model", captured.where, captured.real))
    unknown = [leaf.names[0] for leaf in leaves if leaf.tensor.is_meta]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        found.append(Finding(Kind.NO_VALUES, unknown[0] + more))
    return found


def _constants(
    program: Program,
) -> tuple[Mapping[int, np.ndarray], Sequence[tuple[int, Parameter]]]:
    """Constants with all their values, and those of which samples are enough."""
    used = {number for call in program.calls for number in values_in((call.args, call.kwargs))}
    used.update(program.outputs)
    literals: dict[int, np.ndarray] = {}
    sampled = []
    for value, tensor in program.constants.items():
        if value not in used:
            continue
        array = _array(tensor, program.dtypes[value])
        if array is not None:
            literals[value] = array
            continue
        samples = samples_of(tensor)
        samples = np.asarray(1.0) if samples is None else samples
        shape, dtype = program.shapes[value], program.dtypes[value]
        name = f"constant {value}"
        sampled.append((value, Parameter(name, "buffers", shape, dtype, False, samples)))
    return literals, sampled


def _array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray | None:
    """A small tensor's values, where it has any."""
    if tensor.is_meta or tensor.numel() > _LITERAL or type(tensor) not in _PLAIN:
        return None
    values = tensor.detach().to("cpu")
    if values.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        values = values.to(torch.float32)
    return values.resolve_conj().numpy().astype(dtype)


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
