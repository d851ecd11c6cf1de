"""Makes a generated model that is not as planned smaller, while it stays so.

python tests/random_shrink.py "Architecture(...)"
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import random_models
from random_check import examine
from random_models import Architecture, Parallel, Residual, Scanned, Shared, Split


def smaller(whole: Any) -> Iterator[Any]:
    """Everything that is simpler by a step left out or taken out of its frame, or by a default."""
    if isinstance(whole, tuple):
        for place, step in enumerate(whole):
            before, after = whole[:place], whole[place + 1 :]
            yield before + after
            match step:
                case Shared(steps=inner) | Scanned(steps=inner) | Residual(steps=inner):
                    yield before + inner + after
                case Split(parts=ways) | Parallel(ways=ways):
                    for way in ways:
                        yield before + way + after
            for simpler in smaller(step):
                yield (*before, simpler, *after)
    elif dataclasses.is_dataclass(whole):
        for field in dataclasses.fields(whole):
            value = getattr(whole, field.name)
            if isinstance(value, tuple):
                for simpler in smaller(value):
                    yield dataclasses.replace(whole, **{field.name: simpler})
            elif field.default is not dataclasses.MISSING and value != field.default:
                yield dataclasses.replace(whole, **{field.name: field.default})


def shrink(model: Architecture, fails: Callable[[Architecture], bool]) -> Architecture:
    """The smallest model that fails, found by going from one to the next.

    Arguments:
        model: one that fails.
        fails: whether a model fails; one that cannot be built does not count.
    """
    for simpler in smaller(model):
        try:
            failed = fails(simpler)
        except Exception as error:
            print(f"  skipped ({type(error).__name__})")
            continue
        if failed:
            print(simpler, flush=True)
            return shrink(simpler, fails)
    return model


def main() -> None:
    """Shrink the model that is given, and say what is off about the smallest one."""
    model = eval(sys.argv[1], vars(random_models))
    least = shrink(model, lambda candidate: bool(examine(candidate).failures))
    print(least, *examine(least).failures, sep="\n")


if __name__ == "__main__":
    main()
