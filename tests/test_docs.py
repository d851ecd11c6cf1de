"""The documentation: every Python block runs and prints what is shown, every link leads somewhere.

`python tests/test_docs.py docs/faq.md` writes what a page's blocks print into the page.
"""

import os
import pathlib
import re
import sys
import tempfile

import pytest
from markdown_code import blocks, fill, missing, printed, scripts

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "experiments" / "README.md"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: pathlib.Path) -> str:
    return page.read_text(encoding="utf-8")


SCRIPTS = [
    pytest.param(page, needs, id="-".join([page.stem, *needs]))
    for page in PAGES
    for needs in scripts(text_of(page))
]


@pytest.mark.standard_promotion
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
@pytest.mark.parametrize(("page", "needs"), SCRIPTS)
def test_page_prints_what_it_shows(
    page: pathlib.Path,
    needs: tuple[str, ...],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if missing(needs):
        pytest.skip(f"{name_of(page)} needs {', '.join(missing(needs))}")
    monkeypatch.chdir(tmp_path)
    script = scripts(text_of(page))[needs]
    outputs = printed(script, f"{page.stem.replace('-', '_')}.py")
    for block, output in zip(script, outputs, strict=True):
        if block.shown is not None:
            assert output == block.shown


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_every_python_block_is_found_and_those_not_run_say_why(page: pathlib.Path) -> None:
    text = text_of(page)
    assert len(blocks(text)) == len(re.findall(r"^ *```py", text, re.MULTILINE))
    assert text.count("<!-- output -->") == sum(b.shown is not None for b in blocks(text))
    assert [b.reason for b in blocks(text) if b.reason and " " not in b.reason] == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_internal_links_lead_somewhere(page: pathlib.Path) -> None:
    broken = []
    for link in LINK.findall(text_of(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        known = target.is_file() and (not anchor or anchor in anchors(target))
        if not known:
            broken.append(link)
    assert broken == []


def anchors(page: pathlib.Path) -> set[str]:
    """The ids that headings get, as Python-Markdown and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading) for heading in headings)
    return {text.strip().lower().replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_is_on_the_site(page: pathlib.Path) -> None:
    entry = page.relative_to(ROOT / "docs").as_posix()
    assert re.search(rf": {re.escape(entry)}$", text_of(ROOT / "mkdocs.yml"), re.MULTILINE)


@pytest.mark.parametrize("page", ["internals", "mathematics"])
def test_every_file_that_is_named_exists(page: str) -> None:
    """These pages go from file to file: none may have been renamed."""
    known = {
        path.as_posix()
        for top in ("anyinit", "shims", "tests", "experiments")
        for path in (ROOT / top).rglob("*.py")
    }
    named = re.findall(r"`([\w/]+\.py)`", text_of(ROOT / "docs" / f"{page}.md"))
    assert len(named) > 9
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


def test_table_of_steps_names_every_folder_and_its_files() -> None:
    shown: dict[str, set[str]] = {}
    for line in text_of(ROOT / "docs" / "internals.md").splitlines():
        if line.startswith("|"):
            for folder in re.findall(r"`(_\w+)/`", line):
                shown.setdefault(folder, set()).update(re.findall(r"`([a-z_]+)`", line))
    folders = {path.parent for path in (ROOT / "anyinit").glob("_*/__init__.py")}
    assert set(shown) == {folder.name for folder in folders}
    for folder in folders - {ROOT / "anyinit" / "_rules"}:
        modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert modules <= shown[folder.name], folder.name


if __name__ == "__main__":
    # As conftest.py has them, before a page imports JAX.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    pages = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path in pages:
            fill(path, f"{path.stem.replace('-', '_')}.py")
