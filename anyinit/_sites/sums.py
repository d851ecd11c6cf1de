"""Sums of weight terms, and the residual stream.

A chain of additions is one sum, whatever the order in which it is written: its terms are counted
over the whole tree. Where one term of a sum is an ancestor of another, through a weight, the sum
is an addition to a residual stream: the ancestor is the stream, the other a branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from anyinit._classify.ancestry import Ancestry
from anyinit._classify.traits import Role, Traits
from anyinit._graph import primitives
from anyinit._graph.graph import Graph, Node
from anyinit._sites.lineage import Multiple, passes
from anyinit._sites.uses import Meeting, Uses


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a sum.

    Arguments:
        value: the value at which the term ends (a product, a weight, a fork, ...).
        use: the value of the weight's use behind the term, if it is one.
        chain: values between the sum and the term, the term's own included.
        is_zero: whether the term is zero at initialization.
    """

    value: int
    use: int | None
    chain: frozenset[int]
    is_zero: bool


@dataclasses.dataclass(frozen=True)
class Residual:
    """An addition to a residual stream.

    Arguments:
        root: the sum's value.
        stream: the value of the stream that enters.
        stream_chain: the values that lead from the stream to the sum.
        branches: the terms that are branches.
        count: N, the number of such additions along the stream since its last normalization.
        chain: an identifier that the additions of one stream share.
    """

    root: int
    stream: int
    stream_chain: frozenset[int]
    branches: tuple[Term, ...]
    count: int
    chain: int


@dataclasses.dataclass(frozen=True)
class Sums:
    """Reads sums and residual streams off a graph."""

    graph: Graph
    traits: Traits
    uses: Uses
    ancestry: Ancestry
    multiples: Sequence[Multiple]

    def root(self, value: int) -> int:
        """The value of the whole sum that a sum belongs to."""
        while True:
            consumers = self.live_consumers(value)
            if len(consumers) != 1 or value in self.graph.outputs:
                return value
            node = self.graph.nodes[consumers[0]]
            if not (is_sum(self.traits, node) or passes(self.traits, node, value)):
                return value
            value = node.outputs[0]

    def roots(self, value: int) -> list[int]:
        """The sums that a value belongs to, several where it is added in several places.

        A value that is read otherwise as well belongs to none but its own.
        """
        root = self.root(value)
        if len(self.terms(root)) > 1 or root in self.graph.outputs:
            return [root]
        readers = [self.graph.nodes[n] for n in self.live_consumers(root)]
        if not all(is_sum(self.traits, n) or passes(self.traits, n, root) for n in readers):
            return [root]
        return [last for node in readers for last in self.roots(node.outputs[0])] or [root]

    def live_consumers(self, value: int) -> list[int]:
        """Nodes that read a value, the inside of a log-softmax left out."""
        return [n for n in self.graph.consumers[value] if n not in self.traits.absorbed]

    def terms(self, root: int) -> list[Term]:
        """The terms of the sum that ends at a value; a value that is no sum is its own term."""
        found: list[Term] = []
        pending = [(root, frozenset({root}))]
        while pending:
            value, chain = pending.pop()
            trait = self.traits[value]
            if not trait.moves or trait.role is Role.DERIVED:
                continue
            use = self.uses.by_value.get(value)
            if use is not None or trait.role is Role.WEIGHT:
                found.append(Term(value, value if use else None, chain, trait.is_zero))
                continue
            inside = self._inside(value)
            if not inside:
                found.append(Term(value, None, chain, trait.is_zero))
                continue
            forks = value != root and self._forks(value)
            moving = [v for v in inside if self.traits[v].moves]
            if forks and not self._is_plain(value):
                found.append(Term(value, None, chain, trait.is_zero))
                continue
            pending += [(v, chain | {v}) for v in moving]
        return found

    def _inside(self, value: int) -> tuple[int, ...]:
        """The operands that a sum or a linear step passes on."""
        producer = self.graph.producers[value]
        if producer < 0:
            return ()
        node = self.graph.nodes[producer]
        if is_sum(self.traits, node):
            return node.inputs
        moving = [v for v in node.inputs if self.traits[v].moves]
        picks = node.primitive in primitives.PICK and node.inputs[0] in moving
        if picks or (len(moving) == 1 and passes(self.traits, node, moving[0])):
            return (moving[0],)
        return ()

    def _forks(self, value: int) -> bool:
        """Whether a value is read in several places, its parts (fused gates) not counted."""
        readers = [self.graph.nodes[n] for n in self.live_consumers(value)]
        return len(readers) > 1 and any(n.primitive not in primitives.PICK for n in readers)

    def _is_plain(self, value: int) -> bool:
        """Whether a fork is one weight's product up to bias, factors and layout."""
        while value not in self.uses.by_value:
            moving = [v for v in self._inside(value) if self.traits[v].role is Role.SIGNAL]
            if len(moving) != 1:
                return False
            value = moving[0]
        return True

    def stream_of(self, root: int) -> tuple[int, frozenset[int], tuple[Term, ...]] | None:
        """The stream and the branches of a sum, if one of its terms leads to another."""
        terms = self.terms(root)
        # What is broadcast to the sum's shape (a bias of attention scores) is no stream. The latest
        # counts: a stream may have its own beginning added again (x = a·x + b·x₀ + f(x)).
        size = self.graph.size(root)
        links = sorted(
            (
                (link, term)
                for term in terms
                for link in term.chain - {root}
                if self.graph.size(link) == size
            ),
            key=_first,
        )
        for link, term in reversed(links):
            spread = self._is_spread(link)
            branches = tuple(
                other
                for other in terms
                if other is not term
                and self.ancestry.is_behind_weight(link, other.value)
                and not (spread and self._is_scores(other.value))
            )
            if branches:
                return link, term.chain, branches
        return None

    def _is_spread(self, value: int) -> bool:
        """Whether a value is a smaller one, broadcast: only a mask may have come to it since."""
        inner = value
        while True:
            moving = [v for v in self._inside(inner) if self.traits[v].moves]
            if len(moving) != 1:
                return self.graph.size(inner) < self.graph.size(value)
            inner = moving[0]

    def _is_scores(self, value: int) -> bool:
        """Whether a value is a product of two signals, neither of which averages the other."""
        producer = self.graph.producers[value]
        if producer < 0 or self.graph.nodes[producer].primitive not in primitives.CONTRACTIONS:
            return False
        traits = [self.traits[v] for v in self.graph.nodes[producer].inputs]
        return all(trait.role is Role.SIGNAL and trait.convex is None for trait in traits)


def _first(pair: tuple[int, Term]) -> int:
    return pair[0]


def is_sum(traits: Traits, node: Node) -> bool:
    """Whether a node adds two moving values."""
    moving = [value for value in node.inputs if traits[value].role in (Role.WEIGHT, Role.SIGNAL)]
    return node.primitive in primitives.ADDITIONS and len(moving) == len(node.inputs)


def find_residuals(sums: Sums) -> Mapping[int, Residual]:
    """Every addition to a residual stream, by the value of the sum."""
    found: dict[int, tuple[int, frozenset[int], tuple[Term, ...]]] = {}
    for node in sums.graph.nodes:
        if not is_sum(sums.traits, node):
            continue
        root = sums.root(node.outputs[0])
        if root in found:
            continue
        stream = sums.stream_of(root)
        if stream is not None and any(not branch.is_zero for branch in stream[2]):
            found[root] = stream
    before: dict[int, int | None] = {}
    depth: dict[int, int] = {}
    for root in sorted(found):
        # A stream is a multiple of the sum that it begins with, or of something else.
        earlier = sums.root(sums.multiples[found[root][0]].origin)
        previous = earlier if earlier in found and earlier < root else None
        before[root] = previous
        depth[root] = 1 if previous is None else depth[previous] + 1
    total: dict[int, int] = {}
    start: dict[int, int] = {}
    for root in sorted(found, reverse=True):
        total.setdefault(root, depth[root])
        previous = before[root]
        if previous is not None:
            total[previous] = max(total.get(previous, 0), total[root])
    for root in sorted(found):
        previous = before[root]
        start[root] = root if previous is None else start[previous]
    return {
        root: Residual(root, stream, chain, branches, total[root], start[root])
        for root, (stream, chain, branches) in found.items()
    }


def only_lookups(sums: Sums, root: int) -> bool:
    """Whether every term of a sum is a lookup or an added table."""
    return all(
        term.use is not None
        and sums.uses.by_value[term.use].meeting in (Meeting.LOOKUP, Meeting.ADDED)
        for term in sums.terms(root)
    )
