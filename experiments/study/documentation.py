"""Text that every Python carries: its own documentation."""

from __future__ import annotations

import ast
import importlib
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from experiments.study.errors import StudyError

NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests"}


def topics() -> list[str]:
    """The language reference that `help()` shows."""
    return list(importlib.import_module("pydoc_data.topics").topics.values())


def stdlib() -> list[str]:
    """Every documentation string of the running Python's library, read without importing it."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [p for p in root.rglob("*.py") if not NOT_LIBRARY & set(p.relative_to(root).parts)]
    docstrings = [text for file in files for text in _docstrings(file)]
    if not docstrings:
        raise StudyError(
            f"there are no Python sources under {root}: use --data topics, or a Python that "
            "comes with its library's sources"
        )
    return docstrings + topics()


def _docstrings(file: Path) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        with warnings.catch_warnings():  # old library code has invalid escapes
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text
