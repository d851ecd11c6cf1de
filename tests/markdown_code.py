"""Runs the Python blocks of a Markdown page and compares what they print with what it shows.

A comment right before a fence says what is special about a block:

    <!-- needs: torch transformers -->     run only where these can be imported
    <!-- illustrative: the reason -->      never run

All blocks of a page that need the same packages are one script, from top to bottom. A text block
under a block and the comment ``<!-- output -->`` is what the block prints.
"""

import contextlib
import dataclasses
import importlib.util
import io
import pathlib
import re
from typing import Any

FENCE = re.compile(
    r"(?:^<!-- (?P<mark>needs|illustrative): (?P<value>[^\n]*?) -->\n+)?"
    r"^```python[^\n]*\n(?P<code>.*?)^```\n"
    r"(?P<gap>\n<!-- output -->\n```text\n)?(?(gap)(?P<shown>.*?)```\n)",
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One Python block of a page.

    Arguments:
        code: its text.
        shown: the output that the page shows under it, or ``None``.
        needs: names of the packages that it is run with.
        reason: why it is not run, or an empty string.
        span: where the shown output stands in the page's text.
    """

    code: str
    shown: str | None
    needs: tuple[str, ...]
    reason: str
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    """The page's Python blocks in order."""
    return [
        Block(
            code=found["code"],
            shown=found["shown"],
            needs=tuple(found["value"].split()) if found["mark"] == "needs" else (),
            reason=found["value"] if found["mark"] == "illustrative" else "",
            span=found.span("shown"),
        )
        for found in FENCE.finditer(text)
    ]


def scripts(text: str) -> dict[tuple[str, ...], list[Block]]:
    """The blocks that are run, by what they need: each list is one script."""
    found: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks(text):
        if not block.reason:
            found.setdefault(block.needs, []).append(block)
    return found


def printed(script: list[Block], name: str) -> list[str]:
    """Run a script's blocks in one namespace; what each prints."""
    namespace: dict[str, Any] = {"__name__": name.partition(".")[0]}
    outputs, line = [], 0
    for block in script:
        out = io.StringIO()
        # Line numbers as in a file made of the blocks, which is what the report shows.
        code = compile("\n" * line + block.code, name, "exec")
        line += block.code.count("\n")
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
        outputs.append("".join(f"{row.rstrip()}\n" for row in out.getvalue().splitlines()))
    return outputs


def missing(needs: tuple[str, ...]) -> list[str]:
    """Those of the packages that are not installed."""
    return [package for package in needs if importlib.util.find_spec(package) is None]


def fill(page: pathlib.Path, name: str) -> None:
    """Run what can be run of a page, and write what its blocks print into it."""
    text = page.read_text(encoding="utf-8")
    new = {}
    for needs, script in scripts(text).items():
        if missing(needs):
            continue
        for block, output in zip(script, printed(script, name), strict=True):
            if block.shown is not None:
                new[block.span] = output
    for (start, end), output in sorted(new.items(), reverse=True):
        text = text[:start] + output + text[end:]
    page.write_text(text, encoding="utf-8")
