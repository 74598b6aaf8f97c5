"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from fedvg_jax.host.errors import UsageError


def load(package: str, extra: str, consumer: str) -> Any:
    """Returns the module of an optional package.

    Args:
        package: name that is imported.
        extra: the extra of fedvg_jax that installs it.
        consumer: what needs it, for the error.

    Raises:
        UsageError: it, or a package that it imports, is not installed.

    >>> load("no_such", "hf", "hf:FOLDER")
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: hf:FOLDER needs no_such (No module named 'no_such'); pip install 'fedvg_jax[hf]'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"{consumer} needs {package} ({error}); pip install 'fedvg_jax[{extra}]'"
        ) from None
