"""Inputs that a model shifts by a constant before their first weight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anyinit._classify.traits import Role
from anyinit._graph import primitives
from anyinit._graph.graph import Node
from anyinit._propagate.signal import mean_and_variance
from anyinit._rules import evaluate
from anyinit._trace.trace import Model

# A mean that is a larger share of the root mean square is worth a word.
_NOTED = 0.4

_AFFINE = primitives.SHAPE | primitives.ADDITIONS | {"convert_element_type", "mul", "div", "neg"}


def shifted_inputs(model: Model) -> Iterator[tuple[int, str, float]]:
    """Float inputs most of which a shift makes a constant, as the analysis counts on mean zero.

    Arguments:
        model: the traced model.

    Yields:
        the number of the input, the line of its first weight, and the share that its mean then has
        of its root mean square.
    """
    for number, (value, samples) in enumerate(model.signals.items()):
        inside = {value: samples}
        for node in model.graph.nodes:
            reached = [v for v in node.inputs if v in inside]
            if not reached:
                continue
            if node.primitive in primitives.CONTRACTIONS:
                mean, variance = mean_and_variance(inside[reached[0]])
                share = abs(mean) / np.sqrt(mean**2 + variance)
                if share > _NOTED:
                    yield number, node.where, share
                    break
            elif _is_affine(model, node, reached):
                numbers = [inside.get(v, model.traits.known.get(v)) for v in node.inputs]
                found, _ = evaluate(model.graph, model.traits, node, numbers)  # type: ignore[arg-type]
                inside[node.outputs[0]] = found[0]


def _is_affine(model: Model, node: Node, reached: list[int]) -> bool:
    others = [value for value in node.inputs if value not in reached]
    known = all(model.traits[value].role is Role.KNOWN for value in others)
    divided = node.primitive == "div" and node.inputs[0] not in reached
    return node.primitive in _AFFINE and len(reached) == 1 and known and not divided
