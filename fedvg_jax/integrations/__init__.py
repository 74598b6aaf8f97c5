"""FedVG in other frameworks: `integrations.flower` and `integrations.torch`, each behind an extra of its own.

Importing fedvg_jax imports none of them.
"""

from __future__ import annotations

import importlib


def require(package: str, extra: str) -> None:
    """Raises ImportError, in one line with what to install, unless a package can be imported.

    Args:
        package: name that is imported.
        extra: the extra of fedvg_jax that installs it.

    >>> require("no_such_package", "flower")
    Traceback (most recent call last):
        ...
    ImportError: fedvg_jax.integrations.flower needs no_such_package; pip install 'fedvg_jax[flower]'
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is installed, and one of its own imports is missing
        text = f"fedvg_jax.integrations.{extra} needs {package}; pip install 'fedvg_jax[{extra}]'"
        raise ImportError(text, name=package) from None
