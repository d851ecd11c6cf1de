"""The line of the model's source that an equation comes from."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from typing import Any

import jax

# Marks a line of source among the name scopes of an equation.
_LINE = "source line "

# Frames of these packages are machinery: the user wants the line that called them.
_MACHINERY = """jax jaxlib flax keras tensorflow anyinit anyinit_torch anyinit_keras
anyinit_tensorflow""".split()


@functools.cache
def _machinery_folders() -> tuple[str, ...]:
    folders = []
    for package in _MACHINERY:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folders.append(os.path.dirname(spec.origin) + os.sep)
    return tuple(folders)


@functools.lru_cache(maxsize=4096)
def is_machinery(file_name: str) -> bool:
    """Whether a source file belongs to a framework and not to the model."""
    return (
        file_name.startswith(_machinery_folders())
        or file_name.startswith("<")
        or file_name == functools.__file__
    )


def located(line: str) -> contextlib.AbstractContextManager[Any]:
    """Give the equations traced inside a source line of their own.

    For models that reach JAX through another framework's graph, whose nodes know their lines.

    >>> def negate(x):
    ...     with located("model.py:12"):
    ...         return jax.lax.neg(x)
    >>> source_line(jax.make_jaxpr(negate)(1.0).eqns[0])
    'model.py:12'

    Arguments:
        line: ``file.py:line`` of the model's source; empty where it is not known.
    """
    return jax.named_scope(_LINE + line)


def source_line(equation: Any) -> str:
    """``file.py:line`` of the first frame outside the frameworks, or ``""``.

    Arguments:
        equation: an equation of a jaxpr.
    """
    scopes = str(equation.source_info.name_stack)
    if _LINE in scopes:
        return scopes.rpartition(_LINE)[2].partition("/")[0]
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    for frame in traceback.frames:
        if not is_machinery(frame.file_name):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""


def is_library_call(equation: Any) -> bool:
    """Whether a call equation's body was traced from a framework's own function.

    JAX caches the traces of its own jitted functions: the lines inside them are those of
    whoever called first, so the line of the call itself is the one to show.
    """
    jaxpr = equation.params.get("jaxpr")
    debug_info = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    described = getattr(debug_info, "func_src_info", None) or ""
    file_name = described.rpartition(" at ")[2].rpartition(":")[0]
    return bool(file_name) and is_machinery(file_name)
