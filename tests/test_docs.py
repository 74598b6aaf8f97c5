"""The documentation is what the docstrings and the measurements say."""

import ast
import functools
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import fedvg_jax
import fedvg_jax.engine.differentiable
import fedvg_jax.engine.executors
import fedvg_jax.weightings.baselines
import fedvg_jax.weightings.family
import fedvg_jax.weightings.rules
import fedvg_jax.weightings.signals
import fedvg_jax.weightings.streaming

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


def documented_functions():
    """(name, its lines of api.md, the function) of every function that has arguments documented."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for entry in re.split(r"^#{3,4} ", page, flags=re.M)[1:]:
        name = re.match(r"`fedvg_jax\.([\w.]+)`", entry)
        found = functools.reduce(lambda thing, part: getattr(thing, part, None), name[1].split("."), fedvg_jax)
        if inspect.isfunction(found) and "**Args**" in entry:
            yield pytest.param(entry, found, id=name[1])


@pytest.mark.parametrize(("entry", "function"), [*documented_functions()])
def test_the_arguments_listed_are_the_function_s(entry, function):
    """A sentence of `Returns:` is no argument."""
    _, _, below = entry.partition("**Args**")
    arguments, _, rest = below.partition("**R")
    listed = [name.strip() for names in re.findall(r"^- `([^`]+)`:", arguments, re.M) for name in names.split(",")]
    assert set(listed) <= inspect.signature(function).parameters.keys()
    _, _, returns = rest.partition("eturns**")
    assert not re.findall(r"^- `", returns.partition("**Raises**")[0], re.M)


@pytest.mark.parametrize("section", ["Returns:\n    Weights: a pytree\n    of [K].", "Returns: Weights: a pytree"])
def test_what_is_returned_is_a_paragraph(section):
    text = "\n".join(module(ROOT / "docs" / "generate.py").markdown(section))
    assert "**Returns**" in text and "Weights: a pytree" in text and "`Weights`" not in text


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
