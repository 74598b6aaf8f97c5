"""The examples in the docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedvg_jax

ROOT = Path(fedvg_jax.__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted([*(ROOT / "fedvg_jax").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted and not results.failed
