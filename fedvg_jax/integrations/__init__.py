"""FedVG in other frameworks: `integrations.flower` and `integrations.torch`, each behind an extra of its own.

Importing fedvg_jax imports none of them.
"""

from __future__ import annotations

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import extras


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
        extras.load(package, extra, f"fedvg_jax.integrations.{extra}")
    except UsageError as error:
        raise ImportError(str(error), name=package) from None
