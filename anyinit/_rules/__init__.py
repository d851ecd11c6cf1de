"""What each primitive does to mean-field samples: one file a family.

A rule is a function ``(graph, traits, node, numbers) -> results`` from the samples of a node's
inputs to the samples of its outputs. A primitive that no family knows goes to ``fallback``.
"""

from anyinit._rules.dispatch import evaluate as evaluate
