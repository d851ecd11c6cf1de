"""From a jaxpr to a flat graph: calls inlined, loops and branches written out.

A scan over stacked layers is written out layer by layer, each with its own slice of the stacked
weights. A loop over time is written out up to ``LOOP_CAP`` steps: by then its signal has settled,
and the numbers of the last step are the ones that count. Counters are followed as numbers, so
that a ``while`` that counts runs as often as it does in the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from anyinit._graph.counters import counted
from anyinit._graph.graph import Builder, CappedLoop, Graph, finish
from anyinit._graph.interleave import lay_side_by_side
from anyinit._graph.parts import split_before_adding
from anyinit._graph.quotients import find_averages
from anyinit._graph.rewrite import rewrite
from anyinit._graph.source import is_library_call, source_line
from anyinit._graph.stacks import separate_items

LOOP_CAP = 32

# Primitives whose body is a jaxpr called once, by the name of the parameter that holds it.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def flatten(closed_jaxpr: Any, parameters: Sequence[bool]) -> Graph:
    """Flatten a closed jaxpr.

    Arguments:
        closed_jaxpr: what ``jax.make_jaxpr`` returns.
        parameters: for each argument, whether it is a leaf of the model's parameters; a scan
            whose ``xs`` come from parameters runs over layers, not over time.
    """
    builder = Builder()
    inputs = [
        builder.value(var.aval, from_parameters=is_parameter)
        for var, is_parameter in zip(closed_jaxpr.jaxpr.invars, parameters, strict=True)
    ]
    outputs = _inline(builder, closed_jaxpr.jaxpr, closed_jaxpr.consts, inputs)
    separate_items(builder, [v for v, own in zip(inputs, parameters, strict=True) if own])
    lay_side_by_side(builder)
    split_before_adding(builder)
    find_averages(builder, frozenset(inputs))
    outputs = rewrite(builder, inputs, outputs)
    return finish(builder, inputs, outputs)


def _inline(
    builder: Builder, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int]
) -> list[int]:
    values = dict(zip(jaxpr.invars, arguments, strict=True))
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        values[var] = builder.literal(const, var.aval)

    def read(atom: Any) -> int:
        if isinstance(atom, jex_core.Literal):
            return builder.literal(atom.val, atom.aval)
        return values[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        outputs = _equation(builder, equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(builder: Builder, equation: Any, inputs: list[int]) -> Sequence[int]:
    name = equation.primitive.name
    where = builder.where_override or source_line(equation) or builder.where_called
    previous = builder.where_override, builder.where_called
    # What has no line outside of the frameworks gets that of the call, loop or branch around it.
    builder.where_called = where
    outputs: Sequence[int]
    if name in _CONTROL:
        outputs = _CONTROL[name](builder, equation, inputs, where)
    elif (count := counted(builder, equation, inputs)) is not None:
        outputs = [count]
    elif (body := _called_jaxpr(equation, len(inputs))) is None:
        avals = [var.aval for var in equation.outvars]
        outputs = builder.emit(name, equation.params, inputs, avals, equation, where)
    else:
        if is_library_call(equation):
            builder.where_override = where
        outputs = _inline(builder, body.jaxpr, body.consts, inputs)
    builder.where_override, builder.where_called = previous
    return outputs


def _called_jaxpr(equation: Any, arity: int) -> Any:
    """The body of a call-like equation (jit, remat, custom_jvp ...), else ``None``."""
    for name in _CALLS:
        body = equation.params.get(name)
        if isinstance(body, jex_core.Jaxpr):
            body = jex_core.ClosedJaxpr(body, ())
        if (
            isinstance(body, jex_core.ClosedJaxpr)
            and len(body.jaxpr.invars) == arity
            and len(body.jaxpr.outvars) == len(equation.outvars)
            and not body.jaxpr.constvars[len(body.consts) :]
        ):
            same = all(
                getattr(inner.aval, "shape", None) == getattr(outer.aval, "shape", None)
                for inner, outer in zip(body.jaxpr.invars, equation.invars, strict=True)
            )
            return body if same else None
    return None


def _scan(builder: Builder, equation: Any, inputs: list[int], where: str) -> list[int]:
    params = equation.params
    body, length = params["jaxpr"], params["length"]
    num_consts, num_carry = _scan_counts(params)
    consts = inputs[:num_consts]
    carry = inputs[num_consts : num_consts + num_carry]
    stacked = inputs[num_consts + num_carry :]
    over_layers = any(builder.from_parameters[value] for value in stacked)
    steps = length if over_layers else min(length, LOOP_CAP)
    item_avals = [var.aval for var in body.jaxpr.invars[num_consts + num_carry :]]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    collected: list[list[int]] = []
    before = carry
    outer = builder.inside_earlier_step
    for count, step in enumerate(list(order)[:steps]):
        builder.inside_earlier_step = outer or (not over_layers and count < steps - 1)
        items = [
            builder.emit("stack_item", {"item": step}, [value], [aval], where=where)[0]
            for value, aval in zip(stacked, item_avals, strict=True)
        ]
        results = _inline(builder, body.jaxpr, body.consts, [*consts, *carry, *items])
        before, carry = carry, results[:num_carry]
        collected.append(results[num_carry:])
    builder.inside_earlier_step = outer
    if steps < length:
        builder.capped_loops.append(CappedLoop(where, tuple(before), tuple(carry)))
    outputs = list(carry)
    for position, var in enumerate(equation.outvars[num_carry:]):
        parts = [results[position] for results in collected]
        if not parts:
            outputs.append(builder.literal(np.zeros(var.aval.shape, var.aval.dtype), var.aval))
        elif over_layers:
            parts = parts[::-1] if params["reverse"] else parts
            outputs += builder.emit("stack", {}, parts, [var.aval], where=where)
        else:
            # The steps before the last are no inputs: only the settled one counts.
            of_steps = {"steps": tuple(parts[::-1] if params["reverse"] else parts)}
            outputs += builder.emit("settle", of_steps, parts[-1:], [var.aval], where=where)
    return outputs


def _scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants and carries; JAX 0.12 groups the inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _while(builder: Builder, equation: Any, inputs: list[int], where: str) -> list[int]:
    params = equation.params
    body, test = params["body_jaxpr"], params["cond_jaxpr"]
    skipped, num_consts = params["cond_nconsts"], params["body_nconsts"]
    consts = inputs[skipped : skipped + num_consts]
    carry = inputs[skipped + num_consts :]

    def goes_on() -> bool | None:
        (value,) = _inline(builder, test.jaxpr, test.consts, [*inputs[:skipped], *carry])
        known = builder.literals.get(value)
        return None if known is None else bool(known)

    outer = builder.inside_earlier_step
    before = carry
    going = goes_on()
    for step in range(LOOP_CAP):
        if going is False:
            break
        builder.inside_earlier_step = outer or step < LOOP_CAP - 1
        begin = len(builder.nodes)
        before, carry = carry, _inline(builder, body.jaxpr, body.consts, [*consts, *carry])
        going = goes_on()
        if going is False and not outer:
            # That this step is the last one is known only now.
            last = [dataclasses.replace(n, last_step=True) for n in builder.nodes[begin:]]
            builder.nodes[begin:] = last
    builder.inside_earlier_step = outer
    if going is not False:
        builder.capped_loops.append(CappedLoop(where, tuple(before), tuple(carry)))
    return list(carry)


def _cond(builder: Builder, equation: Any, inputs: list[int], where: str) -> Sequence[int]:
    branches = equation.params["branches"]
    predicate, operands = inputs[0], inputs[1:]
    known = builder.literals.get(predicate)
    if known is not None:
        chosen = branches[int(np.clip(int(known), 0, len(branches) - 1))]
        return _inline(builder, chosen.jaxpr, chosen.consts, operands)
    results = [_inline(builder, branch.jaxpr, branch.consts, operands) for branch in branches]
    outputs: list[int] = []
    for position, var in enumerate(equation.outvars):
        parts = [result[position] for result in results]
        outputs += builder.emit("mix", {"chosen_by": predicate}, parts, [var.aval], where=where)
    return outputs


_CONTROL: Mapping[str, Callable[[Builder, Any, list[int], str], Sequence[int]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
