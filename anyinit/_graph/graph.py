"""A jaxpr as one flat list of nodes: calls inlined, loops written out, dead code removed.

A flat graph makes every later rule simple: whatever a model is built from, a weight's way to the
output is a path through ``nodes``. Values are integers; what is known of them is kept in lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit._graph import primitives


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One primitive applied to values.

    Arguments:
        index: position in the graph; inputs always come from earlier nodes.
        primitive: the primitive's name; ``"stack_item"``, ``"stack"``, ``"settle"`` and
            ``"mix"`` are this package's own, for loops and branches, ``"contract"`` for a product
            that is summed over axes, ``"average"`` for a quotient that is a weighted average, and
            ``"segment_sum"`` and ``"place"`` for what is scattered into zeros.
        params: the primitive's parameters.
        inputs: values read.
        outputs: values written.
        equation: the jaxpr's equation, or ``None`` for nodes of this package.
        where: ``file.py:line`` of the model's source.
        last_step: whether this is the last written-out step of every loop around it.
    """

    index: int
    primitive: str
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    equation: Any
    where: str
    last_step: bool = True


@dataclasses.dataclass(frozen=True)
class CappedLoop:
    """A loop that goes on longer than it was written out.

    Arguments:
        where: ``file.py:line`` of the loop.
        before: what it carries, after the last step but one.
        after: the same after the last step.
    """

    where: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Graph:
    """A flattened computation.

    Arguments:
        nodes: in order of computation; only what an output depends on.
        shapes: shape of each value.
        dtypes: dtype of each value (extended dtypes, such as PRNG keys, included).
        literals: values that are known numbers or arrays from the start.
        inputs: values of the function's arguments.
        outputs: values of the function's results.
        producers: index of the node that writes each value, -1 for inputs and literals.
        consumers: indices of the nodes that read each value.
        capped_loops: loops written out up to the cap only.
        unread: nodes that no rule looks at but that a run on arrays needs: the earlier steps of
            what a loop collects, and what chooses a branch.
        keys: random keys that the function closed over.
    """

    nodes: tuple[Node, ...]
    shapes: list[tuple[int, ...]]
    dtypes: list[Any]
    literals: dict[int, np.ndarray]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    producers: list[int]
    consumers: list[list[int]]
    capped_loops: tuple[CappedLoop, ...] = ()
    unread: tuple[Node, ...] = ()
    keys: Mapping[int, Any] = dataclasses.field(default_factory=dict)

    def size(self, value: int) -> int:
        """Number of elements of a value."""
        return int(np.prod(self.shapes[value], dtype=np.int64))

    def before_layout(self, value: int) -> int:
        """A value before changes of layout and dtype."""
        return before_layout(self.producer, value)

    def producer(self, value: int) -> Node | None:
        """The node that writes a value; ``None`` for inputs and literals."""
        index = self.producers[value]
        return None if index < 0 else self.nodes[index]


class Builder:
    """Collects nodes while a jaxpr is walked; the only mutable object of this module."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[Any] = []
        self.literals: dict[int, np.ndarray] = {}
        self.keys: dict[int, Any] = {}
        self.from_parameters: list[bool] = []
        self.capped_loops: list[CappedLoop] = []
        self.where_override = ""
        self.where_called = ""
        self.inside_earlier_step = False

    def value(self, aval: Any, *, from_parameters: bool = False) -> int:
        """A new value of an abstract shape and dtype."""
        self.from_parameters.append(from_parameters)
        return self._add(
            tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", np.dtype(np.float32))
        )

    def like(self, value: int, shape: tuple[int, ...] | None = None) -> int:
        """A new value as another: of its dtype and origin, and of its shape where none is given."""
        self.from_parameters.append(self.from_parameters[value])
        return self._add(self.shapes[value] if shape is None else shape, self.dtypes[value])

    def _add(self, shape: tuple[int, ...], dtype: Any) -> int:
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        return len(self.shapes) - 1

    def literal(self, array: Any, aval: Any = None) -> int:
        """A value that is known: a literal or a constant that the function closed over."""
        dtype = getattr(array, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended):
            index = self.value(array)
            self.keys[index] = array
            return index
        known = np.asarray(array)
        index = self.value(known if aval is None else aval)
        self.literals[index] = known
        return index

    def emit(
        self,
        primitive: str,
        params: Mapping[str, Any],
        inputs: Sequence[int],
        avals: Sequence[Any],
        equation: Any = None,
        where: str = "",
    ) -> tuple[int, ...]:
        """Append a node and return the values it writes."""
        derived = any(self.from_parameters[i] for i in inputs) and all(
            self.from_parameters[i] or i in self.literals for i in inputs
        )
        outputs = tuple(self.value(aval, from_parameters=derived) for aval in avals)
        self.nodes.append(
            Node(
                len(self.nodes),
                primitive,
                params,
                tuple(inputs),
                outputs,
                equation,
                where,
                not self.inside_earlier_step,
            )
        )
        return outputs


def before_layout(producer: Callable[[int], Node | None], value: int) -> int:
    """A value before changes of layout and dtype.

    Arguments:
        producer: gives the node that writes a value, or ``None``.
        value: where to start.
    """
    while (node := producer(value)) is not None and node.primitive in primitives.LAYOUT:
        value = node.inputs[0]
    return value


# Fewer steps of a signal, or uses of a weight in a row, are no loop over time.
LEAST_STEPS = 3


def collected_steps(node: Node) -> tuple[int, ...]:
    """Of what a loop over time collects, the values of its steps; of any other node, none."""
    return tuple(node.params["steps"]) if node.primitive == "settle" else ()


def step_before(node: Node) -> int | None:
    """Of what a loop collects, the value at the last step but one; ``None`` for any other node."""
    steps = collected_steps(node)
    if len(steps) < 2:
        return None
    # A loop that runs backwards collects its last step first.
    return int(steps[-2] if steps[-1] == node.inputs[0] else steps[1])


def hidden_inputs(node: Node) -> tuple[int, ...]:
    """Values that a node needs when it is run on arrays, beside its inputs."""
    steps = collected_steps(node)
    return (node.params["chosen_by"],) if node.primitive == "mix" else steps


def renamed(node: Node, names: Mapping[int, int]) -> Node:
    """A node that reads other values in the place of some; itself where it reads none of them."""
    if names.keys().isdisjoint((*node.inputs, *hidden_inputs(node))):
        return node
    params = dict(node.params)
    if node.primitive == "settle":
        params["steps"] = tuple(names.get(value, value) for value in params["steps"])
    elif node.primitive == "mix":
        params["chosen_by"] = names.get(params["chosen_by"], params["chosen_by"])
    inputs = tuple(names.get(value, value) for value in node.inputs)
    return dataclasses.replace(node, params=params, inputs=inputs)


def finish(builder: Builder, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """Remove what no output depends on and index producers and consumers."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(builder.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    kept.reverse()
    unread = _unread(builder, kept)
    nodes = tuple(dataclasses.replace(node, index=i) for i, node in enumerate(kept))
    producers = [-1] * len(builder.shapes)
    consumers: list[list[int]] = [[] for _ in builder.shapes]
    for node in nodes:
        for value in node.outputs:
            producers[value] = node.index
        for value in dict.fromkeys(node.inputs):
            consumers[value].append(node.index)
    return Graph(
        nodes=nodes,
        shapes=builder.shapes,
        dtypes=builder.dtypes,
        literals=builder.literals,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        producers=producers,
        consumers=consumers,
        capped_loops=tuple(builder.capped_loops),
        unread=unread,
        keys=builder.keys,
    )


def _unread(builder: Builder, kept: Sequence[Node]) -> tuple[Node, ...]:
    """What a run on arrays needs beside the nodes that are kept."""
    missing = {value for node in kept for value in hidden_inputs(node)}
    present = {value for node in kept for value in node.outputs}
    found = []
    for node in reversed(builder.nodes):
        if present.isdisjoint(node.outputs) and missing.intersection(node.outputs):
            missing.update((*node.inputs, *hidden_inputs(node)))
            found.append(dataclasses.replace(node, index=-1))
    return tuple(reversed(found))
