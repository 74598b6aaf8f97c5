"""Names of a package that are imported when they are first used, so that importing the package stays light."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Returns `__getattr__` and `__all__` of a package with a stub, `__init__.pyi`, that imports its public names.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(str(homes[name]))
        if home.__name__ == package or not hasattr(home, name):  # a module
            return importlib.import_module(f"{home.__name__}.{name}")
        return getattr(home, name)

    return getattr_, sorted(homes)
