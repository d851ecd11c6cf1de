"""Runs the README's Python blocks and compares what they print with what the README shows.

`python tests/test_readme.py` writes the printed output into the README.
"""

import os
import pathlib
from unittest import mock

import pytest
from markdown_code import fill, printed, scripts

README = pathlib.Path(__file__).parent.parent / "README.md"


@pytest.mark.standard_promotion
@mock.patch.dict(os.environ, {"COLUMNS": "100"})
def test_readme_prints_what_it_shows() -> None:
    script = scripts(README.read_text(encoding="utf-8"))[()]
    outputs = printed(script, "example.py")
    assert any(block.shown for block in script)
    for block, output in zip(script, outputs, strict=True):
        assert output == (block.shown or "")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    fill(README, "example.py")
