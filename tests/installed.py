"""Runs what the documentation shows against the installed package: `python installed.py [extra]`.

It stands in a folder without the package, so that what is imported is what was installed.
"""

import os
import pathlib
import sys

from markdown_code import printed, scripts

ROOT = pathlib.Path(__file__).parent.parent
OPTIONAL = {"torch", "keras", "tensorflow", "transformers", "matplotlib", "tokenizers"}


def main(extra: str) -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    page, needs = (ROOT / "docs" / "index.md", (extra,)) if extra else (ROOT / "README.md", ())
    script = scripts(page.read_text(encoding="utf-8"))[needs]
    outputs = printed(script, "example.py" if not extra else "index.py")
    for block, output in zip(script, outputs, strict=True):
        assert block.shown is None or output == block.shown, output

    import anyinit

    assert anyinit.__file__ and not pathlib.Path(anyinit.__file__).is_relative_to(ROOT)
    imported = OPTIONAL & set(sys.modules)
    assert imported <= {extra}, f"imported without being asked for: {imported - {extra}}"
    print(f"anyinit-jax[{extra}] {anyinit.__version__}: {page.name} prints what it shows")


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
