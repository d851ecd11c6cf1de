"""Puts pages that lie outside of docs/ on the site, and makes the links to and from them fit.

In the repository `docs/study.md` links to `../experiments/README.md`; on the site both lie in one
tree, where that is `experiments/README.md`.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "experiments/README.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    root = Path(config.config_file_path).parent
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links between the two trees."""
    name = page.file.src_uri
    if name in OUTSIDE:
        return re.sub(r"(\]\((?:\.\./)*)docs/", r"\1", markdown)
    up = "../" * name.count("/")
    return markdown.replace(f"]({up}../", f"]({up}")
