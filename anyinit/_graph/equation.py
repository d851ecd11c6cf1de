"""Run one equation of a jaxpr on real arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core


def run_equation(equation: Any, arrays: Sequence[Any]) -> list[np.ndarray]:
    """Results of an equation, computed on the CPU whatever the caller is tracing.

    >>> import jax.numpy as jnp
    >>> equation = jax.make_jaxpr(lambda x: jnp.cumsum(x))(np.ones(3, np.float32)).eqns[0]
    >>> run_equation(equation, [np.float32([1, 2, 3])])[0].tolist()
    [1.0, 3.0, 6.0]

    Arguments:
        equation: the equation.
        arrays: one array an operand, of its shape and dtype; an elementwise primitive takes any
            shape.

    Returns:
        One array a result.

    Raises:
        Exception: whatever the primitive raises on these arrays.
    """
    given = {
        atom: array
        for atom, array in zip(equation.invars, arrays, strict=True)
        if not isinstance(atom, jex_core.Literal)
    }
    # Results that nothing reads have no name of their own to be returned by.
    results = [jex_core.Var(var.aval) for var in equation.outvars]
    jaxpr = _empty_jaxpr().replace(
        invars=list(given),
        outvars=results,
        eqns=[equation.replace(outvars=results)],
        effects=equation.effects,
    )
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(r) for r in jax.core.eval_jaxpr(jaxpr, (), *given.values())]


@functools.cache
def _empty_jaxpr() -> Any:
    """A jaxpr to fill in: parameters differ between versions of JAX, and pass as they are."""
    return jax.make_jaxpr(lambda: ())().jaxpr
