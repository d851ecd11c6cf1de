"""Runs the README's Python blocks and compares what they print with what the README shows.

`python tests/test_readme.py` writes the printed output into the README.
"""

import contextlib
import io
import os
import pathlib
import re
from typing import Any
from unittest import mock

import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```\n"
    r"(?P<gap>\n<!-- \w+ -->\n)?(?(gap)```text\n(?P<shown>.*?)```\n)",
    re.DOTALL,
)


def printed(text: str) -> list[str]:
    """Run all Python blocks in one namespace; return what each prints."""
    namespace: dict[str, Any] = {"__name__": "readme"}
    outputs, line = [], 0
    for block in BLOCK.finditer(text):
        out = io.StringIO()
        # Line numbers as in a file made of the blocks, which is what the report shows.
        code = compile("\n" * line + block["code"], "example.py", "exec")
        line += block["code"].count("\n")
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
        outputs.append("".join(f"{row.rstrip()}\n" for row in out.getvalue().splitlines()))
    return outputs


@pytest.mark.standard_promotion
@mock.patch.dict(os.environ, {"COLUMNS": "100"})
def test_readme_prints_what_it_shows() -> None:
    text = README.read_text(encoding="utf-8")
    shown = [block["shown"] or "" for block in BLOCK.finditer(text)]
    assert len(shown) == text.count("```python")
    assert printed(text) == shown


def write() -> None:
    """Put the printed output into the README."""
    text = README.read_text(encoding="utf-8")
    outputs = iter(printed(text))

    def filled(block: re.Match[str]) -> str:
        output = next(outputs)
        marker = block["gap"]
        shown = f"{marker}```text\n{output}```\n" if marker else ""
        return f"```python\n{block['code']}```\n{shown}"

    README.write_text(BLOCK.sub(filled, text), encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    write()
