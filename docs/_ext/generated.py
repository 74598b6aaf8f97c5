"""The parts of the pages that come from the code and from results files, the pages of the API reference and of studies.

`python -m benchmarks.table` writes the pieces between their markers in the pages. Sphinx writes the pages
docs/reference/api/NAME.md and docs/studies/NAME.md before it reads the others.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from benchmarks.machine import RESULTS
from benchmarks.pages import api

DOCS = Path(__file__).parent.parent


def write(app=None) -> None:
    """Writes what has changed, and removes pages that are no more."""
    wanted = {DOCS / "reference" / "api" / f"{name}.md": text for name, text in api.pages().items()}
    studies = sorted(RESULTS.rglob("README.md"))
    wanted |= {
        on_site(page): with_links_of_site(page.read_text(encoding="utf-8"), page)
        for page in studies
    }
    for folder in {path.parent for path in wanted}:
        if set(folder.glob("*.md")) - wanted.keys():
            shutil.rmtree(folder)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def on_site(page: Path) -> Path:
    """Returns where the site has a file: the pages of studies are in docs/studies."""
    is_study = page.name == "README.md" and page.is_relative_to(RESULTS)
    return DOCS / "studies" / f"{page.parent.name}.md" if is_study else page


def with_links_of_site(text: str, page: Path) -> str:
    """Returns the text of a page with links that lead to the same files on the site."""

    def link(match: re.Match) -> str:
        return "](" + os.path.relpath(
            on_site((page.parent / match[1]).resolve()), on_site(page).parent
        )

    return re.sub(r"\]\(([^)#:\s]+)", link, text)


LISTS = {"reference/api": "api/*", "studies/results": "*"}
"""Page -> pages that follow it in the site's list, which the page in the repository has no use for."""


def adapt(app, name: str, source: list[str]) -> None:
    """Adapts a page to the site: links to studies, and lists of pages."""
    if not name.startswith("studies/"):
        source[0] = with_links_of_site(source[0], DOCS / f"{name}.md")
    if name in LISTS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{LISTS[name]}\n```\n"


def setup(app) -> dict[str, bool]:
    """Registers the step."""
    app.connect("builder-inited", write)
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
