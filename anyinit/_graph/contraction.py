"""The arithmetic of contractions: what is summed over in *this* graph."""

from __future__ import annotations

import numpy as np

from anyinit._graph.graph import Graph, Node


def fan_in(graph: Graph, node: Node) -> float:
    """Number of elements that each output of a contraction sums over.

    Never read off a weight's shape: groups, several contracted axes, kernels, dilation and
    padding are all in the node's own parameters. At padded borders a convolution sums over fewer;
    the mean over the positions counts.
    """
    if node.primitive == "dot_general":
        (contracted, _), _ = node.params["dimension_numbers"]
        shape = graph.shapes[node.inputs[0]]
        return float(np.prod([shape[axis] for axis in contracted], dtype=np.int64))
    if node.primitive == "contract":
        return float(np.prod([node.params["shape"][axis] for axis in node.params["axes"]]))
    if node.primitive == "conv_general_dilated":
        return _convolution_fan(graph, node)
    return float(graph.shapes[node.inputs[0]][-1])


def terms_of_sum(graph: Graph, node: Node) -> float:
    """Number of elements that each output of a reduction takes together."""
    if "window_dimensions" in node.params:
        return float(np.prod(node.params["window_dimensions"], dtype=np.int64))
    # What is scattered into another array is its last operand.
    source = node.inputs[-1 if node.primitive.startswith("scatter") else 0]
    return graph.size(source) / max(graph.size(node.outputs[0]), 1)


def contracted_axes(node: Node, position: int) -> tuple[int, ...] | None:
    """The axes of an operand that a contraction sums over, where its parameters name them."""
    if node.primitive == "dot_general":
        return tuple(node.params["dimension_numbers"][0][position])
    return tuple(node.params["axes"]) if node.primitive == "contract" else None


def swaps_places(graph: Graph, node: Node) -> bool:
    """Whether a node transposes axes of one size: what it writes fits what it reads, elsewhere.

    W + W.T adds different numbers, W + W the same.
    """
    if node.primitive != "transpose":
        return False
    shape = graph.shapes[node.inputs[0]]
    moved = [axis for place, axis in enumerate(node.params["permutation"]) if axis != place]
    return graph.shapes[node.outputs[0]] == shape and any(shape[axis] > 1 for axis in moved)


def pairs_all(graph: Graph, node: Node) -> bool:
    """Whether a contraction has no free axes: elements are paired one to one, then summed."""
    if node.primitive == "contract":
        return True
    if node.primitive != "dot_general":
        return False
    (contracted, _), (batch, _) = node.params["dimension_numbers"]
    used = len(contracted) + len(batch)
    return used == len(graph.shapes[node.inputs[0]]) == len(graph.shapes[node.inputs[1]])


def _convolution_fan(graph: Graph, node: Node) -> float:
    numbers = node.params["dimension_numbers"]
    signal, kernel = (graph.shapes[value] for value in node.inputs[:2])
    result = graph.shapes[node.outputs[0]]
    fan = float(kernel[numbers.rhs_spec[1]])
    for position, (low, _) in enumerate(node.params["padding"]):
        size = signal[numbers.lhs_spec[2 + position]]
        taps = kernel[numbers.rhs_spec[2 + position]]
        positions = result[numbers.out_spec[2 + position]]
        stride = node.params["window_strides"][position]
        spread = node.params["lhs_dilation"][position]
        dilation = node.params["rhs_dilation"][position]
        starts = np.arange(positions)[:, None] * stride - low
        places = starts + np.arange(taps)[None, :] * dilation
        inside = (places >= 0) & (places <= (size - 1) * spread) & (places % spread == 0)
        fan *= float(inside.sum()) / max(positions, 1)
    return max(fan, 1e-12)
