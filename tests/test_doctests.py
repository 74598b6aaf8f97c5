"""The examples in the docstrings are true."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import fedvg_jax

ROOT = Path(fedvg_jax.__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted([*(ROOT / "fedvg_jax").rglob("*.py"), *(ROOT / "benchmarks" / "paper").glob("*.py")])
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted and not results.failed


def test_every_promised_function_shows_an_example():
    for name in fedvg_jax.__all__:
        if inspect.isfunction(getattr(fedvg_jax, name)):
            assert ">>> " in getattr(fedvg_jax, name).__doc__, name
