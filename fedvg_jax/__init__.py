"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

Public names are imported when they are first used, so that `import fedvg_jax` stays light. `__init__.pyi` lists them.
"""

from __future__ import annotations

import importlib
import re

__version__ = "0.1.0"

with open(f"{__file__}i", encoding="utf-8") as _stub:
    _HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _stub.read(), re.M)}
"""Public name -> the module that defines it; a namespace is a module of a package."""

__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    home = _HOMES[name]
    value = None if home == __name__ else getattr(importlib.import_module(home), name, None)
    globals()[name] = value = importlib.import_module(f"{home}.{name}") if value is None else value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
