"""Entries that are equal up to the numbers in their names, shown once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import TypeVar

_Rest = TypeVar("_Rest", bound=Hashable)


def collapse(named: Iterable[tuple[str, _Rest]]) -> list[tuple[str, _Rest]]:
    """Merge entries that are equal up to a number in their names.

    >>> collapse([("h_0/up", 1), ("h_1/up", 1), ("h_2/up", 1), ("h_3/up", 2)])
    [('h_{0…2}/up', 1), ('h_3/up', 2)]

    Arguments:
        named: names, each with anything hashable that must be equal for names to be merged.

    Returns:
        The merged entries in the order of their first members.
    """
    # Splitting at numbers puts them at the odd places; the outermost number is merged first.
    entries = [(tuple(re.split(r"(\d+)", name)), rest) for name, rest in named]
    for place in range(1, max((len(parts) for parts, _ in entries), default=0), 2):
        merged: dict[Hashable, tuple[tuple[str, ...], list[str], _Rest]] = {}
        for position, (parts, rest) in enumerate(entries):
            if place < len(parts):
                key: Hashable = (parts[:place], parts[place + 1 :], rest)
                merged.setdefault(key, (parts, [], rest))[1].append(parts[place])
            else:
                merged[position] = (parts, [], rest)
        entries = [
            ((*parts[:place], _numbers(found), *parts[place + 1 :]), rest)
            if found
            else (parts, rest)
            for parts, found, rest in merged.values()
        ]
    return [("".join(parts), rest) for parts, rest in entries]


def _numbers(found: list[str]) -> str:
    """``{0…11}`` for consecutive numbers, ``{0,2,5…7}`` otherwise."""
    if len(set(found)) == 1:
        return found[0]
    runs: list[list[int]] = []
    for number in sorted({int(text) for text in found}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = (str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs)
    return "{" + ",".join(spans) + "}"
