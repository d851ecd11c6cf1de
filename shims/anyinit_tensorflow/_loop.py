"""Loops: one that counts becomes a scan, which the analysis follows to where it settles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyinit_tensorflow._branches import called_graph
from anyinit_tensorflow._lowerings.lists import Reserved
from anyinit_tensorflow._operation import NotStaticError, shape_of

# A loop that has not ended after this many steps is none that counts.
_LONGEST = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A loop and the values that enter it.

    Arguments:
        run: the run that it is part of.
        test: the graph that says whether it goes on.
        body: the graph of one step.
        values: what enters, in the order of both graphs' inputs.
    """

    run: Any
    test: Any
    body: Any
    values: Sequence[Any]

    def kept(self) -> frozenset[int]:
        """Places of what every step hands on as it is."""
        pairs = zip(self.body.inputs, self.body.outputs, strict=True)
        return frozenset(i for i, (a, b) in enumerate(pairs) if _source(b) is a)

    def counters(self) -> Mapping[int, int]:
        """Places of known integers to which every step adds a number, and that number."""
        found = {}
        for place, (start, end) in enumerate(zip(self.body.inputs, self.body.outputs, strict=True)):
            value, made = self.values[place], _source(end).op
            whole = isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"
            if whole and made.type in ("Add", "AddV2") and _source(made.inputs[0]) is start:
                added = _source(made.inputs[1]).op
                if added.type == "Const":
                    (step,) = self.run.evaluate([], [], [made.inputs[1]])
                    found[place] = int(step)
        return found

    def steps(self) -> int | None:
        """How often the loop runs; ``None`` where that depends on the signal."""
        counters, kept = self.counters(), self.kept()

        def goes_on(step: int) -> bool:
            values = [
                np.asarray(value + step * counters[place], value.dtype)
                if place in counters
                else (value if place in kept and isinstance(value, np.ndarray) else None)
                for place, value in enumerate(self.values)
            ]
            return bool(self.run.evaluate(self.test.inputs, values, self.test.outputs)[0])

        try:
            if not goes_on(0):
                return 0
            low, high = 0, 1
            while goes_on(high):
                low, high = high, 2 * high
                if high > _LONGEST:
                    return None
        except (KeyError, jax.errors.JAXTypeError):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if goes_on(middle) else (low, middle)
        return high

    def written(self, steps: int) -> Mapping[int, Any]:
        """Places of lists to which step t writes tensor t, and what it writes there."""
        found = {}
        for place, (start, end) in enumerate(zip(self.body.inputs, self.body.outputs, strict=True)):
            made, value = _source(end).op, self.values[place]
            if made.type != "TensorListSetItem" or _source(made.inputs[0]) is not start:
                continue
            if not isinstance(value, Reserved) or len(start.consumers()) != 1:
                continue
            if value.length == steps and self._is_step(made.inputs[1]):
                found[place] = made.inputs[2]
        return found

    def read(self, steps: int) -> Mapping[Any, Any]:
        """Tensors of the body that are tensor t of a list in step t, and the list's tensors."""
        found = {}
        kept = {self.body.inputs[place].ref(): self.values[place] for place in self.kept()}
        for operation in self.body.get_operations():
            if operation.type == "TensorListGetItem" and self._is_step(operation.inputs[1]):
                items = kept.get(_source(operation.inputs[0]).ref())
                if items is not None and jnp.ndim(items) and jnp.shape(items)[0] == steps:
                    found[operation.outputs[0].ref()] = items
        return found

    def _is_step(self, index: Any) -> bool:
        """Whether a tensor of the body is the number of the step."""
        return any(
            step == 1 and self.values[place] == 0 and self.body.inputs[place] is _source(index)
            for place, step in self.counters().items()
        )

    def start(self, place: int) -> Any:
        """The value with which something that the loop carries begins."""
        value = self.values[place]
        if not isinstance(value, Reserved):
            return jnp.asarray(value)
        made = _source(self.body.outputs[place]).op
        known = shape_of(made.inputs[2]) if made.type == "TensorListSetItem" else None
        return value.zeros(known)

    def step(
        self,
        carried: Mapping[int, Any],
        items: Mapping[Any, Any],
        number: Any,
        wanted: Sequence[Any],
    ) -> list[Any]:
        """Values of tensors of the body in one step.

        Arguments:
            carried: what changes from step to step, by its place.
            items: what the step reads from lists, by the tensor that it becomes.
            number: which step it is.
            wanted: the tensors.
        """
        run = dataclasses.replace(self.run, key=jax.random.fold_in(self.run.key, number))
        values = [carried.get(place, value) for place, value in enumerate(self.values)]
        inputs = [*self.body.inputs, *(reference.deref() for reference in items)]
        found: list[Any] = run.evaluate(inputs, [*values, *items.values()], wanted)
        return found


def _while(run: Any, operation: Any, values: Sequence[Any]) -> Sequence[Any]:
    test, body = (called_graph(operation, operation.get_attr(name)) for name in ("cond", "body"))
    loop = _Loop(run, test, body, values)
    steps = loop.steps()
    if steps == 0:
        return values
    written = {} if steps is None else loop.written(steps)
    carried = [i for i in range(len(values)) if i not in loop.kept() and i not in written]
    starts = {place: loop.start(place) for place in carried}
    zero = jnp.zeros((), np.int32)
    read = {} if steps is None else loop.read(steps)

    def step(carry: Any, read_now: Sequence[Any]) -> Any:
        number, current = carry
        items = dict(zip(read, read_now, strict=False))
        wanted = [*(body.outputs[place] for place in carried), *written.values()]
        found = [jnp.asarray(value) for value in loop.step(current, items, number, wanted)]
        after = dict(zip(carried, found[: len(carried)], strict=True))
        for place, value in after.items():
            if (value.shape, value.dtype) != (starts[place].shape, starts[place].dtype):
                raise NotStaticError(f"the shape of {body.outputs[place].name} in every step")
        return (number + 1, after), found[len(carried) :]

    if steps is None:
        _, ends = jax.lax.while_loop(
            lambda carry: _goes_on(loop, carry[1]),
            lambda carry: step(carry, ())[0],
            (zero, starts),
        )
        lists: Sequence[Any] = []
    else:
        lines = [jnp.asarray(items) for items in read.values()]
        (_, ends), lists = jax.lax.scan(step, (zero, starts), lines, length=steps)
    made = {**ends, **dict(zip(written, lists, strict=True))}
    return [made.get(place, value) for place, value in enumerate(values)]


def _goes_on(loop: _Loop, carried: Mapping[int, Any]) -> Any:
    values = [carried.get(place, value) for place, value in enumerate(loop.values)]
    return jnp.asarray(loop.run.evaluate(loop.test.inputs, values, loop.test.outputs)[0])


def _source(tensor: Any) -> Any:
    """The tensor that a tensor is a copy of."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


# Called with a Run, the operation and its inputs.
LOOPS: dict[str, Callable[[Any, Any, Sequence[Any]], Sequence[Any]]] = {
    "StatelessWhile": _while,
    "While": _while,
}
