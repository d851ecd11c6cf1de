"""Finds the rule of a primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anyinit._classify.traits import Traits
from anyinit._graph.graph import Graph, Node
from anyinit._rules import control, elementwise, layout, linear, reduce, scatter
from anyinit._rules.fallback import evaluate_equation, keep_moment

Rule = Callable[[Graph, Traits, Node, Sequence[np.ndarray]], Sequence[np.ndarray]]

_RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **reduce.RULES,
    **linear.RULES,
    **control.RULES,
    **scatter.RULES,
}


def evaluate(
    graph: Graph, traits: Traits, node: Node, numbers: Sequence[np.ndarray]
) -> tuple[Sequence[np.ndarray], bool]:
    """Samples of a node's outputs from the samples of its inputs.

    Returns:
        the samples of each output, and whether they are a mere assumption: that the primitive,
        for which there is no rule and which could not be evaluated, keeps the second moment.
    """
    rule = _RULES.get(node.primitive)
    with np.errstate(all="ignore"):
        if rule is not None:
            return rule(graph, traits, node, numbers), False
        results = evaluate_equation(graph, node, numbers)
        if results is not None:
            return results, False
        return keep_moment(graph, node, numbers), True
