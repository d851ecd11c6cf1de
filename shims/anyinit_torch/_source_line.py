"""The line of the model's source that is being executed."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import CodeType, FrameType, TracebackType

import torch

from anyinit._graph.source import is_machinery

_MACHINERY = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(contextlib.__file__) + os.sep + "contextlib.py",
    os.path.dirname(functools.__file__) + os.sep + "functools.py",
    "<",
)

# In the transformers package the files of the models are the models' source, the rest serves them.
_SERVICE = f"{os.sep}transformers{os.sep}"
_MODELS = f"{os.sep}transformers{os.sep}models{os.sep}"

_CALLER = os.path.join("anyinit_keras", "_on_torch.py")


@functools.lru_cache(maxsize=4096)
def _is_model(code: CodeType) -> bool:
    name = code.co_filename
    service = is_machinery(name) or name.startswith(_MACHINERY)
    return not service and (_SERVICE not in name or _MODELS in name)


def executed_line() -> str:
    """``file.py:line`` of the innermost frame that belongs to a model, or ``""``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # What called a Keras model is no line of it.
        if frame.f_code.co_filename.endswith(_CALLER):
            return ""
        if _is_model(frame.f_code):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def raising_line(traceback: TracebackType | None) -> str:
    """``file.py:line`` of the innermost frame of an error that belongs to a model, or ``""``.

    Arguments:
        traceback: the error's traceback.
    """
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if _is_model(code):
            found = f"{os.path.basename(code.co_filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
