"""Parameters before training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import Mesh

import anyinit.flax
from experiments.study.devices import replicated
from experiments.study.protocol import Scheme
from experiments.study.shapes import EXAMPLE, Shape


def initial_params(shape: Shape, scheme: Scheme, seed: int, mesh: Mesh) -> Any:
    """The table as the scheme has it, and the rest alike everywhere but in the library's rows."""
    if scheme.library:
        return _by_library(seed, shape=shape, scheme=scheme, mesh=mesh)
    untied = dataclasses.replace(shape, tied=False)  # so that one executable draws for all
    params = _by_scheme(seed, scheme.table_std(shape.width), shape=untied, mesh=mesh)
    return without_head(params) if shape.tied else params


def without_head(params: Any) -> Any:
    """The parameters that every scheme has."""
    return {name: leaf for name, leaf in params.items() if name != "head"}


@functools.partial(jax.jit, static_argnames=("shape", "scheme", "mesh"))
def _by_library(seed: int, *, shape: Shape, scheme: Scheme, mesh: Mesh) -> Any:
    model = shape.model(scheme.lookup(shape.width), scheme.logits(shape.width))
    params = anyinit.flax.init(model, jax.random.key(seed), EXAMPLE)["params"]
    return jax.lax.with_sharding_constraint(params, replicated(mesh))


@functools.partial(jax.jit, static_argnames=("shape", "mesh"))
def _by_scheme(seed: int, table_std: float, *, shape: Shape, mesh: Mesh) -> Any:
    params = shape.model().init(jax.random.key(seed), EXAMPLE)["params"]
    table = params["table"]["embedding"] * table_std  # drawn at 1
    drawn = {**params, "table": {"embedding": table}}
    return jax.lax.with_sharding_constraint(drawn, replicated(mesh))
