"""A model that JAX can trace, analysed, with what its graph is run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import keras

from anyinit._apply.rescale import scale_to
from anyinit._plan.analysis import Analysis, examine
from anyinit._plan.plan import Plan
from anyinit._trace.existing import array_of, is_constant, samples_of
from anyinit._trace.trace import Parameter, trace
from anyinit_keras._inputs import Call, is_array
from anyinit_keras._values import abstract, read

# A function of the values of a model's variables and of its arrays, in the backend's own tensors.
Run = Callable[[Sequence[Any], Sequence[Any]], Any]

# The same on JAX values, with a random key, for JAX to trace.
Lowered = Callable[[Sequence[Any], Sequence[Any], Any], Any]

# Makes one of the other, given shapes and dtypes of the variables and of the arrays.
Lower = Callable[[Run, Sequence[Any], Sequence[Any]], Lowered]


def describe(name: str, variable: keras.Variable) -> Parameter:
    """What the analysis knows of a variable.

    Variables of one axis that take no gradient are state, such as the averages of a batch norm.

    Arguments:
        name: its name.
        variable: the variable.
    """
    value = read(variable)
    shape, dtype = tuple(value.shape), abstract(variable).dtype
    state = not variable.trainable and len(shape) < 2
    collection = "state" if state else "params"
    if not jnp.issubdtype(dtype, jnp.floating):
        return Parameter(name, collection, shape, dtype, False, None)
    drawn = not state and not is_constant(value)
    array = None if drawn else array_of(value)
    return Parameter(name, collection, shape, dtype, drawn, samples_of(value), array=array)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced and analysed model, with what its graph is run on.

    Arguments:
        analysis: the analysis.
        fixed: its variables by name, random states left out.
        keys: how many random keys it takes: one a random state, and one more.
    """

    analysis: Analysis
    fixed: Mapping[str, keras.Variable]
    keys: int

    def values(self, batch: Sequence[Any], plan: Plan | None) -> tuple[list[Any], list[Any]]:
        """The arrays of the graph's parameters, scaled as a plan says, and of its other inputs.

        Arguments:
            batch: the arrays among the model's inputs.
            plan: the scales to give the variables; by default they enter as they are.
        """
        rows = {} if plan is None else plan.weight_by_name
        leaves = [
            scale_to(read(variable), rows[name].sigma, rows[name].layer_axes)
            if name in rows
            else read(variable)
            for name, variable in self.fixed.items()
        ]
        return leaves, [*(jax.random.key(number) for number in range(self.keys)), *batch]


def analyse(
    model: keras.Layer,
    named: Mapping[str, keras.Variable],
    random: Set[int],
    call: Call,
    chosen: Callable[[str], bool],
    input_moment: float,
    lower: Lower,
) -> Traced:
    """Trace a model and plan its variables.

    Arguments:
        model: a built model.
        named: its variables by name.
        random: identities of the variables that hold random states.
        call: the arguments to call it with.
        chosen: whether a variable is to be scaled.
        input_moment: second moment of the float inputs.
        lower: makes what the backend computes a function that JAX can trace.
    """
    fixed = {name: v for name, v in named.items() if id(v) not in random}
    states = [v for v in named.values() if id(v) in random]
    variables = [*fixed.values(), *states]
    leaves, structure = jax.tree.flatten((call.x, dict(call.further)))
    arrays = [leaf for leaf in leaves if is_array(leaf)]

    def run(values: Sequence[Any], inputs: Sequence[Any]) -> Any:
        remaining = iter(inputs)
        filled = [next(remaining) if is_array(leaf) else leaf for leaf in leaves]
        x, further = jax.tree.unflatten(structure, filled)
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return model(x, **further)

    lowered = lower(run, variables, arrays)

    def forward(values: Sequence[Any], given: Any) -> Any:
        (*keys, own), inputs = given
        # A seed state is the data of a key: coming from one, it counts as random.
        seeds = [_state_of(key, v) for v, key in zip(states, keys, strict=True)]
        return lowered([*values, *seeds], inputs, own)

    key = jax.eval_shape(lambda: jax.random.key(0))
    parameters = [describe(name, variable) for name, variable in fixed.items()]
    shapes = [abstract(variable) for variable in fixed.values()]
    keys = len(states) + 1
    traced = trace(forward, parameters, shapes, ([key] * keys, arrays), input_moment)
    return Traced(examine(traced, chosen), fixed, keys)


def _state_of(key: Any, variable: keras.Variable) -> jax.Array:
    return jax.random.key_data(key).reshape(variable.shape).astype(abstract(variable).dtype)
