"""Which axes of a signal are features, and which are positions.

Along a feature axis every element has weights of its own, so elements are independent. Along any
other axis (batch, time, image) the same weights serve every position, so elements of one feature
are alike: that decides what a mean over positions leaves of a signal.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyinit._classify.traits import Role, Trait
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node

Flags = tuple[bool, ...]


def argument_features(shape: Sequence[int], role: Role) -> Flags:
    """Of an argument: all axes of a weight; of a signal the last one of a batch of sequences.

    The elements of a signal that enters are all alike. Which axis holds its features matters only
    where a weight mixes the steps of sequences before anything else.
    """
    if role is Role.SIGNAL:
        return tuple(len(shape) == 3 and axis == 2 and size > 1 for axis, size in enumerate(shape))
    return tuple(role is Role.WEIGHT and size > 1 for size in shape)


def features(graph: Graph, node: Node, inputs: Sequence[Trait], value: int) -> Flags:
    """For each axis of a node's result, whether it is a feature axis.

    Arguments:
        graph: the flattened model.
        node: the node.
        inputs: traits of its operands.
        value: the result.
    """
    name = node.primitive
    shape = graph.shapes[value]
    if name == "dot_general":
        return _contracted(node, inputs)
    if name == "conv_general_dilated":
        return _convolved(node, inputs[0].features, len(shape))
    if name == "gather":
        return _gathered(node, inputs[0], len(shape))
    moving = [i for i, trait in enumerate(inputs) if trait.role is Role.SIGNAL]
    if name == "average":
        moving = [0]
    moving = moving or [i for i, trait in enumerate(inputs) if trait.moves]
    if not moving:
        return (False,) * len(shape)
    flags = inputs[moving[0]].features
    before = graph.shapes[node.inputs[moving[0]]]
    if name == "transpose":
        return tuple(flags[axis] for axis in node.params["permutation"])
    if name == "broadcast_in_dim":
        places = list(node.params["broadcast_dimensions"])
        return tuple(axis in places and flags[places.index(axis)] for axis in range(len(shape)))
    if name == "contract" or (name in primitives.REDUCTIONS and "axes" in node.params):
        whole = _joined(inputs, moving, len(before)) or flags
        return tuple(f for axis, f in enumerate(whole) if axis not in node.params["axes"])
    if name in ("reshape", "squeeze", "expand_dims", "stack_item") and before != shape:
        return _reshaped(before, shape, flags)
    joined = _joined(inputs, moving, len(shape))
    if joined is not None:
        return joined
    # Whatever else changes the shape is taken to keep the features last.
    return tuple(axis == len(shape) - 1 and flags[-1:] == (True,) for axis in range(len(shape)))


def _joined(inputs: Sequence[Trait], moving: Sequence[int], rank: int) -> Flags | None:
    """Axes that are features of any operand of this rank."""
    alike = [inputs[i].features for i in moving if len(inputs[i].features) == rank]
    return tuple(any(axis) for axis in zip(*alike, strict=True)) if alike else None


def _contracted(node: Node, inputs: Sequence[Trait]) -> Flags:
    contracted, batch = node.params["dimension_numbers"]
    pairs = zip(*batch, strict=True)
    flags = [inputs[0].features[a] or inputs[1].features[b] for a, b in pairs]
    mixed = mixes_positions(node, inputs)
    for trait, summed, shared in zip(inputs, contracted, batch, strict=True):
        used = {*summed, *shared}
        kernel = mixed and trait.role is Role.WEIGHT
        flags += [f and not kernel for axis, f in enumerate(trait.features) if axis not in used]
    return tuple(flags)


def mixes_positions(node: Node, inputs: Sequence[Trait]) -> bool:
    """Whether a weight is multiplied along positions, as by a mixer: positions come out of it.

    Arguments:
        node: the node.
        inputs: traits of its operands.
    """
    if node.primitive != "dot_general" or {i.role for i in inputs} != {Role.WEIGHT, Role.SIGNAL}:
        return False
    place = 0 if inputs[0].role is Role.SIGNAL else 1
    (contracted, _) = node.params["dimension_numbers"]
    flags = inputs[place].features
    return any(flags) and not any(flags[axis] for axis in contracted[place])


def _convolved(node: Node, flags: Flags, rank: int) -> Flags:
    numbers = node.params["dimension_numbers"]
    result = [False] * rank
    # One kernel serves all places.
    result[numbers.out_spec[0]] = flags[numbers.lhs_spec[0]]
    result[numbers.out_spec[1]] = True
    return tuple(result)


def _gathered(node: Node, table: Trait, rank: int) -> Flags:
    """Rows of a table: the row's own axes are features, where indices stand are positions."""
    numbers = node.params["dimension_numbers"]
    gone = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    kept = [f for axis, f in enumerate(table.features) if axis not in gone]
    result = [False] * rank
    for place, flag in zip(numbers.offset_dims, kept, strict=True):
        result[place] = flag
    return tuple(result)


def _reshaped(before: Sequence[int], after: Sequence[int], flags: Flags) -> Flags:
    """Axes that are merged or split: each group of axes of one size passes its flags on."""
    result: list[bool] = []
    i = j = 0
    while j < len(after):
        group, size, target = [i] if i < len(before) else [], 1, after[j]
        first = j
        size = before[i] if i < len(before) else 1
        while size != target and (size < target or j + 1 < len(after)):
            if size < target:
                if group and group[-1] + 1 >= len(before):
                    break
                group.append(group[-1] + 1)
                size *= before[group[-1]]
            else:
                j += 1
                target *= after[j]
        flag = any(flags[axis] for axis in group if before[axis] > 1)
        result += [flag and after[k] > 1 for k in range(first, j + 1)]
        i, j = (group[-1] + 1 if group else i), j + 1
    return tuple(result)
