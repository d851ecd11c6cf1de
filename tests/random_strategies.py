"""Generates architectures with hypothesis, small enough to be run by the hundred."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from random_models import (
    FUNCTIONS,
    INITIALIZERS,
    QUADRATIC,
    Architecture,
    Attention,
    D,
    Dropout,
    Factor,
    Function,
    Gate,
    Linear,
    Norm,
    Parallel,
    Recurrent,
    Residual,
    Scanned,
    Shared,
    Split,
)

TAME = tuple(name for name in FUNCTIONS if name not in QUADRATIC)
FACTORS = (0.25, 0.5, 1.7, 3.0, math.sqrt(D), 1 / math.sqrt(D))
SPATIAL = ("conv", "dilated", "grouped", "depthwise")

# Layers after which a signal that no norm has touched is normalized: the fluctuations of finite
# width add up from layer to layer, those of powers and products faster.
_LAYERS, _PRODUCTS = 4, 1

once = st.just(1.0)


def linears(inputs: str, narrow: bool = False) -> st.SearchStrategy[Linear]:
    spellings = ["dense", "dense", "heads", "merged", "einsum", "transposed"]
    if inputs not in ("vectors", "tokens"):
        spellings += SPATIAL
    if narrow:
        return st.builds(Linear, st.just("dense"))
    return st.builds(
        Linear,
        st.sampled_from(spellings),
        st.sampled_from(sorted(INITIALIZERS)),
        st.sampled_from(["none", "zeros", "zeros", "drawn"]),
        st.just(D),
        once | st.sampled_from(FACTORS),
    )


def functions() -> st.SearchStrategy[Function]:
    plain = st.builds(Function, st.sampled_from(sorted(FUNCTIONS)))
    joined = st.builds(
        Function,
        st.sampled_from(TAME),
        st.sampled_from([0.5, 1.0, 1.0, 2.0]),
        st.sampled_from([-0.5, 0.0, 0.0, 1.0]),
        st.sampled_from(["none", "compose", "product", "sum", "difference", "maximum"]),
        st.sampled_from(TAME),
    )
    return plain | joined


def factors() -> st.SearchStrategy[Factor]:
    spellings = ["times", "over", "array", "parameter", "negative", "sum"]
    return st.builds(Factor, st.sampled_from(FACTORS), st.sampled_from(spellings))


def norms() -> st.SearchStrategy[Norm]:
    return st.builds(Norm, st.sampled_from(["layer", "rms", "group", "plain", "unit", "written"]))


@st.composite
def layers(draw: st.DrawFn, inputs: str) -> tuple[Any, ...]:
    """A weight and a function, perhaps with constant factors or dropout in between."""
    steps: list[Any] = [draw(linears(inputs))]
    extra = factors() | st.builds(Dropout)
    steps += draw(st.lists(extra, max_size=1))
    steps += [draw(functions())]
    steps += draw(st.lists(extra, max_size=1))
    return tuple(steps)


@st.composite
def branches(draw: st.DrawFn, inputs: str) -> tuple[Any, ...]:
    """Steps that end in a weight."""
    kinds = ["perceptron", "gated", "weight"]
    kinds += ["attention"] if inputs in ("tokens", "sequences") else []
    kind = draw(st.sampled_from(kinds))
    if kind == "attention":
        return (draw(attentions()),)
    inner = {
        "perceptron": layers(inputs),
        "gated": st.tuples(gates()),
        "weight": st.just(()),
    }[kind]
    tail = draw(st.lists(factors() | st.builds(Dropout), max_size=1))
    return (*draw(inner), draw(linears(inputs)), *tail)


def gates() -> st.SearchStrategy[Gate]:
    return st.builds(Gate, st.sampled_from(TAME), st.booleans())


def attentions() -> st.SearchStrategy[Attention]:
    scales = st.sampled_from(["after", "query", "none"])
    return st.builds(Attention, st.booleans(), st.booleans(), scales, st.booleans())


def residuals(inputs: str) -> st.SearchStrategy[Residual]:
    multipliers = once | st.sampled_from([0.2, 0.5, 2.0])
    norm = st.sampled_from(["before", "before", "after", "none"])
    streams = once | st.sampled_from([0.5, 0.9])
    return st.builds(Residual, branches(inputs), norm, multipliers, streams, st.booleans())


@st.composite
def steps(draw: st.DrawFn, inputs: str) -> tuple[Any, ...]:
    """One part of a model; each keeps the signal's shape."""
    kinds = "layer layer residual residual gate split parallel joined shared scanned norm factor"
    kinds += " attention recurrent" if inputs == "sequences" else ""
    kinds += " attention" if inputs == "tokens" else ""
    match draw(st.sampled_from(kinds.split())):
        case "layer":
            return draw(layers(inputs))
        case "residual":
            return (draw(residuals(inputs)),)
        case "gate":
            return (draw(gates()), draw(linears(inputs)))
        case "split":
            part = st.lists(functions() | factors(), max_size=2).map(tuple)
            parts = st.lists(part, min_size=2, max_size=2)
            return (draw(linears(inputs)), Split(tuple(draw(parts))), draw(linears(inputs)))
        case "parallel":
            ways = st.lists(branches(inputs), min_size=2, max_size=3)
            return (Parallel(tuple(draw(ways))),)
        case "joined":
            ways = st.lists(layers(inputs) | branches(inputs), min_size=2, max_size=3)
            return (Parallel(tuple(draw(ways)), "concatenate"), draw(linears(inputs)))
        case "shared":
            body = layers(inputs) | st.tuples(residuals(inputs))
            return (Shared(draw(body), draw(st.integers(2, 3))),)
        case "scanned":
            body = layers(inputs) | st.tuples(residuals(inputs))
            return (Scanned(draw(body), draw(st.integers(2, 3))),)
        case "norm":
            return (draw(norms()),)
        case "factor":
            return (draw(factors()),)
        case "attention":
            return (draw(attentions()),)
    return (draw(st.builds(Recurrent, st.sampled_from(["lstm", "gru", "simple", "minimal"]))),)


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """A model of one to four parts."""
    inputs = draw(st.sampled_from(["vectors", "sequences", "tokens", "images"]))
    parts = draw(st.lists(steps(inputs), min_size=1, max_size=4))
    body, normalized = tamed(tuple(step for part in parts for step in part))
    pools = ["none"] if inputs == "vectors" else ["none", "none", "mean", "max", "last"]
    tied = inputs == "tokens" and draw(st.booleans())
    pool = "none" if tied else draw(st.sampled_from(pools))
    either = once | st.sampled_from(FACTORS)
    return Architecture(
        inputs,
        body,
        pool,
        # What pooling leaves of a signal that no norm follows is tested by name.
        draw(st.booleans()) or not normalized or pool in ("mean", "max"),
        tied,
        draw(either) if inputs == "tokens" else 1.0,
        draw(either),
        draw(either),
        draw(st.sampled_from([0.0, 0.0, 10.0, 30.0])),
    )


def tamed(steps: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """The steps with a norm wherever fluctuations would add up, and whether they end tame."""
    done: list[Any] = []
    count = products = 0
    for step in steps:
        added, multiplied = _depth(step)
        if count + added > _LAYERS or products + multiplied > _PRODUCTS:
            done.append(Norm("rms"))
            count = products = 0
        done.append(step)
        count, products = count + added, products + multiplied
        if isinstance(step, Norm) or (isinstance(step, Residual) and step.norm == "after"):
            count = products = 0
    return tuple(done), count <= _LAYERS


def _depth(step: Any) -> tuple[int, int]:
    """Nonlinear layers of a step, and the products among them."""
    match step:
        case Function(first=first, join=join):
            power = first in QUADRATIC or join == "product"
            return 1, int(power)
        case Gate():
            return 1, 1
        case Residual(steps=inner, norm="none"):
            return _whole(inner)
        case Shared(steps=inner, times=times) | Scanned(steps=inner, layers=times):
            added, multiplied = _whole(inner)
            return added * times, multiplied * times
        case Split(parts=ways) | Parallel(ways=ways):
            found = [_whole(way) for way in ways]
            return max(a for a, _ in found), max(m for _, m in found)
        case Recurrent():
            return 2, 0
    return 0, 0


def _whole(steps: tuple[Any, ...]) -> tuple[int, int]:
    found = [_depth(step) for step in steps]
    return sum(a for a, _ in found), sum(m for _, m in found)
