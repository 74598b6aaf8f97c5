"""The documentation is what the docstrings and the measurements say."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "regression")
"""Those that are notebooks; regression.py is a command, and `test_adapt.py` runs it."""


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_generated_pages_are_up_to_date():
    """Else: python docs/generate.py."""
    generate = module(ROOT / "docs" / "generate.py")
    for path, text in generate.pages().items():
        assert path.read_text(encoding="utf-8") == text, path.name
    assert generate.memory_table() in (ROOT / "docs" / "differentiable.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_its_pictures_and_links_are_there(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_code_of_the_page_runs():
    page = (ROOT / "docs" / "differentiable.md").read_text(encoding="utf-8")
    told = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), told)
    assert told["slope"] != 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_notebook(path):
    """Percent format: a cell of text first, every cell of code complete in itself, the run in the last."""
    cells = re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.M)
    assert not cells[0] and cells[1].startswith(" [markdown]")
    for cell in cells[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            assert all(line.startswith("#") or not line for line in body.splitlines())
        else:
            ast.parse(body)
    assert 'if __name__ == "__main__":' in cells[-1]


def runs(path, tmp_path):
    picture = tmp_path / "picture.png"
    module(path).main(fast=True, path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_small(path, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDVG_CACHE_DIR", str(tmp_path / "cache"))
    runs(path, tmp_path)
