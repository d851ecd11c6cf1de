"""The line of the model's source that made an operation."""

from __future__ import annotations

import os
from typing import Any

from anyinit._graph.source import is_machinery

_CALLER = os.path.join("anyinit_keras", "_traced.py")


def made_by(operation: Any) -> str:
    """``file.py:line`` of the innermost frame that belongs to a model, or ``""``.

    Arguments:
        operation: an operation of a graph.
    """
    for frame in reversed(operation.traceback or ()):
        # What called the model is no line of it.
        if frame.filename.endswith(_CALLER):
            return ""
        if not is_machinery(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return ""
