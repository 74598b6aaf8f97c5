"""Module paths and names of earlier versions, kept as aliases: importing such a module warns once."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence

MODULES: dict[str, tuple[str, ...]] = {
    "types": ("core.types",),
    "signals": ("weightings.signals",),
    "weighting": ("weightings.basic", "weightings.fedvg", "weightings.aggregation"),
    "controls": ("weightings.baselines",),
    "family": ("weightings.family",),
    "fisher": ("weightings.fisher",),
    "terms": ("weightings.streaming", "core.types"),
    "differentiable": ("engine.differentiable",),
    "round": ("engine.federated_round",),
    "schedule": ("engine.schedule",),
    "history": ("runs.history",),
    "loop": ("api", "runs.loop"),
}
"""Old module -> the modules that hold its names now."""

NAMES: dict[str, str] = {
    "weighting.everywhere": "broadcast_weights",
    "terms.alone": "single_term",
    "terms.halves": "mean_terms",
    "terms.split": "select_terms",
}
"""Old name -> its name now."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of `MODULES` when they are imported; the last of the import system's finders."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None):
        package, _, old = fullname.partition(".")
        known = package == "fedvg_jax" and old in MODULES
        return importlib.machinery.ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: types.ModuleType) -> None:
        old = module.__name__.partition(".")[2]
        places = [f"fedvg_jax.{place}" for place in MODULES[old]]
        warnings.warn(f"{module.__name__} has moved to {' and '.join(places)}", DeprecationWarning, stacklevel=2)

        def __getattr__(name: str):
            new = NAMES.get(f"{old}.{name}", name)
            for place in map(importlib.import_module, places):
                if hasattr(place, new):
                    return getattr(place, new)
            raise AttributeError(f"{module.__name__} has no {name!r}; look in {', '.join(places)}")

        module.__dict__["__getattr__"] = __getattr__


def install() -> None:
    """Adds the aliases to the import system, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
