"""The site that `make docs` builds with Sphinx: every Markdown page of the repository, searchable.

Pages are read where they lie, so that their relative links hold on the site as in the repository. A
link to a file that is no page leads to a copy of the file. A link that leads nowhere, and a page
that no list of docs/README.md names, fail the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "Workup"
html_title = "Workup"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    *("*.md", "docs/*.md", "docs/**/*.md", "src/**/README.md", "environments/**/README.md"),
]
exclude_patterns = [".*", "build", "runs", "exports", "**/node_modules"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # examples are shortened with "…"
highlight_language = "text"
html_theme = "furo"
html_static_path = ["style"]
html_css_files = ["tables.css"]
html_show_copyright = False
html_copy_source = False

SECTION = re.compile(r"^## (.+)$|^\*\*(.+)\*\*$")
LISTED = re.compile(r"\]\(([^)#\s]+\.md)\)")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds the table of contents: it is the index in docs/README.md.

    The first page has a part for each of the index's headings. The README of a folder in docs/ has
    the folder's other pages.
    """
    here = ROOT / f"{page}.md"
    if page == root_doc:
        source[0] += "".join(_contents(title, pages) for title, pages in _index().items())
    elif here.parent.parent == ROOT / "docs" and here.name == "README.md":
        others = sorted(each.stem for each in here.parent.glob("*.md") if each != here)
        source[0] += _contents("", others)
    elif not here.is_relative_to(
        ROOT / "docs"
    ):  # a README beside code: no entry of the menu, but links and search find it
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def _index() -> dict[str, list[str]]:
    """heading of docs/README.md → the pages that its lists name, from the repository's root."""
    found: dict[str, list[str]] = {"": ["docs/README"]}
    title = ""
    for line in (ROOT / "docs/README.md").read_text(encoding="utf-8").splitlines():
        if heading := SECTION.match(line):
            title = heading.group(1) or heading.group(2)
        for target in LISTED.findall(line):
            there = (ROOT / "docs" / target).resolve().relative_to(ROOT).with_suffix("")
            if not any(str(there) in pages for pages in found.values()) and str(there) != root_doc:
                found.setdefault(title, []).append(str(there))
    return found


def _contents(title: str, pages: list[str]) -> str:
    caption = f":caption: {title}\n" if title else ""
    return "\n\n```{toctree}\n:hidden:\n" + caption + "\n".join(pages) + "\n```\n" if pages else ""
