"""The plan's names of a tree's leaves: their keys, joined by a slash."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

PARAMS = "params"


class Leaf(NamedTuple):
    """A leaf of a caller's tree under the plan's name.

    Arguments:
        name: what the plan calls it: ``a/b/kernel``, or ``collection/path`` outside ``params``.
        collection: the Flax collection that it lies in; ``"params"`` for a tree without any.
        value: the leaf itself.
    """

    name: str
    collection: str
    value: Any


def key_parts(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The keys of a JAX key path as strings, without the key that a box around a leaf adds.

    >>> key_parts((DictKey("h_0"), SequenceKey(1), DictKey("kernel"), GetAttrKey("value")))
    ('h_0', '1', 'kernel')

    Arguments:
        path: as ``jax.tree_util.tree_flatten_with_path`` gives it, for dicts, sequences,
            dataclasses, ``nnx.State``, and leaves boxed in ``nn.Partitioned`` or ``nnx.Param``.

    Returns:
        One string a key.
    """
    end = len(path)
    # A box is an attribute; a parameter that a module calls "value" is a dictionary key.
    while end > 1 and isinstance(path[end - 1], GetAttrKey) and path[end - 1].name == "value":
        end -= 1
    return tuple(_text(key) for key in path[:end])


def name_of(parts: tuple[str, ...], known: Container[str] = ()) -> str:
    """The plan's name of a leaf: joined by a slash, without a leading ``params`` collection.

    >>> name_of(("params", "wte", "embedding")), name_of(("batch_stats", "bn", "mean"))
    ('wte/embedding', 'batch_stats/bn/mean')

    Arguments:
        parts: the leaf's keys, from ``key_parts``.
        known: names that the plan has. A name found there is kept as it is, so that a module
            that is itself called ``params`` keeps its name in a tree without collections.

    Returns:
        The name.
    """
    full = "/".join(parts)
    if len(parts) > 1 and parts[0] == PARAMS and full not in known:
        return "/".join(parts[1:])
    return full


def named_leaves(
    tree: Any, known: Container[str] = ()
) -> tuple[list[Leaf], jax.tree_util.PyTreeDef]:
    """Flatten a tree of parameters, with or without collections, into named leaves.

    >>> leaves, treedef = named_leaves({"params": {"wte": {"embedding": 1.0}}})
    >>> leaves[0].name, leaves[0].collection
    ('wte/embedding', 'params')

    Arguments:
        tree: the whole variables or the inner ``params``, of any container type.
        known: names that the plan has.

    Returns:
        The leaves in JAX's order, and the treedef that puts them back.
    """
    with_paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    has_collections = PARAMS in _children(tree)
    leaves = []
    for path, value in with_paths:
        parts = key_parts(path)
        collection = parts[0] if has_collections else PARAMS
        leaves.append(Leaf(name_of(parts, known), collection, value))
    return leaves, treedef


def _text(key: Any) -> str:
    match key:
        case DictKey() | FlattenedIndexKey():
            return str(key.key)
        case GetAttrKey():
            return str(key.name)
        case SequenceKey():
            return str(key.idx)
        case _:
            return str(key).strip(".[]'\"")


def _children(tree: Any) -> set[str]:
    """Names of the tree's immediate children that are containers, empty ones included."""
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    return {
        _text(path[0]) for path, child in children if path and not jax.tree_util.all_leaves([child])
    }
