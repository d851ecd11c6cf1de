"""Runs a model's flattened graph on real arrays, and measures what it computes at every site."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from measure import keys

import anyinit
from anyinit._flax.linen import trace_linen
from anyinit._measure.measuring_pass import BatchPass
from anyinit._measure.places import Places
from anyinit._plan.analysis import Analysis
from anyinit._sites.walk import Acts

# The flat graph is compiled for each model and run three times: fast to compile counts.
_COMPILER = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def arguments(variables: Any, seed: int, *args: Any, **kwargs: Any) -> list[Any]:
    """The arrays that the graph's inputs stand for, in their order."""
    leaves = jax.tree.leaves(dict(variables))
    streams = [keys(seed)[name] for name in sorted(keys(seed))]
    inputs = [leaf for leaf in jax.tree.leaves((args, kwargs)) if hasattr(leaf, "dtype")]
    return [*leaves, *streams, *inputs]


def run_flat(analysis: Analysis, given: Sequence[Any]) -> dict[int, Any]:
    """Every value of the graph, computed node by node."""
    graph = analysis.model.graph
    values: dict[int, Any] = {v: jnp.asarray(a) for v, a in graph.literals.items()}
    values.update(graph.keys)
    values.update(zip(graph.inputs, given, strict=True))
    walk = BatchPass(graph, analysis.model.traits, Places(), values, {})
    walk.run()
    return walk.values


@dataclasses.dataclass(frozen=True)
class Deviation:
    """A site's predicted and measured second moment."""

    path: str
    acts: str
    predicted: float
    measured: float
    at_most: bool
    where: str

    @property
    def ratio(self) -> float:
        """How far apart the two are, as a factor of at least 1."""
        if self.measured <= 0 or self.predicted <= 0:
            return float("inf") if self.measured > 1e-12 else 1.0
        ratio = self.measured / self.predicted
        return max(ratio, 1.0 if self.at_most else 1 / ratio)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A model measured on fresh inputs, averaged over seeds."""

    plan: anyinit.Plan
    outputs: tuple[float, ...]
    sites: tuple[Deviation, ...]
    streams: tuple[tuple[float, float], ...]
    additions: int
    difference: float
    variables: Any


def measured(
    model: nn.Module, make_args: Any, seeds: int = 3, draw: Any = keys, **kwargs: Any
) -> Measured:
    """Plan a model, run its flat graph on fresh inputs, and compare.

    `make_args(seed)` gives fresh inputs, `draw(seed)` the keys of the parameters. `difference` is
    how far the flat graph's output is from the model's own, `variables` are those of the first
    seed.
    """
    analysis = trace_linen(model, make_args(0), kwargs).analysis
    plan, graph, record = analysis.plan, analysis.model.graph, analysis.solution.record
    sites = [
        site
        for site in dict.fromkeys(analysis.sites.sites)
        if site.value in record.moments and graph.nodes[site.use.node].last_step
    ]
    chains: dict[int, list[Any]] = {}
    shared = {site.value for site in sites if site.acts is Acts.RESIDUAL}
    for root, residual in sorted(analysis.sites.structure.residuals.items()):
        if not any(shared & {branch.value, *branch.chain} for branch in residual.branches):
            continue
        chains.setdefault(residual.chain, []).append((root, residual))
    ends = [(found[0][1].stream, [root for root, _ in found]) for found in chains.values()]
    outputs = [v for v in graph.outputs if _is_signal(graph, v)]
    read = list(
        dict.fromkeys(
            [*outputs, *(s.value for s in sites)]
            + [v for start, roots in ends for v in (start, *roots)]
        )
    )

    @jax.jit
    def moments_of(given: Sequence[Any]) -> tuple[list[jax.Array], list[jax.Array]]:
        values = run_flat(analysis, given)
        squares = [jnp.mean(jnp.square(values[v].astype(jnp.float32))) for v in read]
        return squares, [values[v] for v in outputs]

    totals = np.zeros(len(read))
    difference = 0.0
    compiled = kept = None
    first = make_args(0)
    initialize = compiled_for(
        lambda rngs: plan.rescale(model.init(rngs, *first, **kwargs)), draw(0)
    )
    for seed in range(seeds):
        variables = initialize(draw(seed))
        fresh = make_args(seed + 1)
        given = arguments(variables, seed, *fresh, **kwargs)
        if compiled is None:
            compiled = moments_of.lower(given).compile(compiler_options=_COMPILER)
        squares, results = compiled(given)
        totals += np.asarray(squares, np.float64) / seeds
        if seed == 0:
            kept = variables
            own = _applied(model, variables, seed, fresh, kwargs)
            difference = _difference(own, results)
    moment = dict(zip(read, totals, strict=True))
    return Measured(
        plan,
        tuple(float(moment[v]) for v in outputs),
        tuple(_deviation(analysis, site, moment[site.value]) for site in sites),
        tuple((float(moment[s]), float(max(moment[r] for r in roots))) for s, roots in ends),
        max((found[0][1].count for found in chains.values()), default=0),
        difference,
        kept,
    )


def compiled_for(function: Any, *args: Any) -> Any:
    """A function compiled for arguments like these; what its result does not need is left out."""
    return jax.jit(function).lower(*args).compile(compiler_options=_COMPILER)


def _is_signal(graph: Any, value: int) -> bool:
    return jnp.issubdtype(graph.dtypes[value], jnp.inexact)


def _applied(model: nn.Module, variables: Any, seed: int, args: Any, kwargs: Any) -> Any:
    streams = {name: key for name, key in keys(seed).items() if name != "params"}
    mutable = kwargs.pop("mutable", False) or [n for n in variables if n != "params"]

    leaves, structure = jax.tree.flatten(args)
    # What is no array is a static argument of the model, here as in a plan.
    arrays = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")}

    def apply(variables: Any, arrays: Any) -> Any:
        args = jax.tree.unflatten(structure, [arrays.get(i, v) for i, v in enumerate(leaves)])
        if mutable:
            return model.apply(variables, *args, rngs=streams, mutable=mutable, **kwargs)[0]
        return model.apply(variables, *args, rngs=streams, **kwargs)

    return compiled_for(apply, dict(variables), arrays)(dict(variables), arrays)


def _difference(own: Any, results: Sequence[Any]) -> float:
    floats = [leaf for leaf in jax.tree.leaves(own) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    differences = [0.0]
    for left, right in zip(floats, results, strict=True):
        scale = float(jnp.sqrt(jnp.mean(jnp.square(left.astype(jnp.float32))))) or 1.0
        differences.append(float(jnp.max(jnp.abs(left - right))) / scale)
    return max(differences)


def _deviation(analysis: Analysis, site: Any, measured_moment: float) -> Deviation:
    traits = analysis.model.traits
    names = [analysis.model.parameters[leaf].name for leaf, _ in site.use.sources]
    items = [item for _, item in site.use.sources if item is not None]
    path = " × ".join(names) + (f"[{items[0]}]" if items else "")
    read = [site.value, *([] if site.use.signal is None else [site.use.signal])]
    return Deviation(
        path,
        site.acts.value,
        float(analysis.solution.record.moments[site.value]),
        float(measured_moment),
        any(traits[value].at_most for value in read),
        site.where,
    )
