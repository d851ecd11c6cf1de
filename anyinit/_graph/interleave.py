"""Values laid side by side by padding each with zeros and adding: no sum, but one beside the other.

This is how ``jax.lax.associative_scan`` puts its even and odd steps together.
"""

from __future__ import annotations

import dataclasses

from anyinit._graph.graph import Builder, Node


def lay_side_by_side(builder: Builder) -> None:
    """Replace sums of paddings that do not overlap by a join of what was padded.

    Arguments:
        builder: changed in place; the paddings are left for the removal of dead code.
    """
    paddings = {node.outputs[0]: node for node in builder.nodes if node.primitive == "pad"}
    builder.nodes = [_joined(builder, paddings, node) for node in builder.nodes]


def _joined(builder: Builder, paddings: dict[int, Node], node: Node) -> Node:
    if node.primitive not in ("add", "or") or not paddings.keys() >= set(node.inputs):
        return node
    parts = [paddings[value] for value in node.inputs]
    if any(builder.literals.get(part.inputs[1], 1) != 0 for part in parts):
        return node
    if not _complete(builder, parts):
        return node
    params = {"axis": None, "paddings": tuple(part.params["padding_config"] for part in parts)}
    return dataclasses.replace(
        node,
        primitive="stack",
        params=params,
        inputs=tuple(part.inputs[0] for part in parts),
        equation=None,
    )


def _complete(builder: Builder, parts: list[Node]) -> bool:
    """Whether two paddings fill each other's gaps along one axis, and nothing else."""
    shape = builder.shapes[parts[0].outputs[0]]
    left, right = (_places(builder, part) for part in parts)
    apart = [axis for axis in range(len(shape)) if left[axis] != right[axis]]
    if len(apart) != 1:
        return False
    axis = apart[0]
    others = all(len(left[a]) == shape[a] for a in range(len(shape)) if a != axis)
    return others and sorted(left[axis] + right[axis]) == list(range(shape[axis]))


def _places(builder: Builder, part: Node) -> list[list[int]]:
    """Along each axis, where the entries of a padded value come to lie."""
    sizes = builder.shapes[part.inputs[0]]
    return [
        [low + k * (interior + 1) for k in range(size)]
        for size, (low, _, interior) in zip(sizes, part.params["padding_config"], strict=True)
    ]
