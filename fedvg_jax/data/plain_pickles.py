"""Pickles of arrays, plain containers and estimators of scikit-learn. Reading one runs no code that it holds."""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any

import numpy as np

_PACKAGES = ("numpy", "sklearn", "_codecs", "builtins")
_NAMES = (
    np.clip,
    bool,
    float,
    int,
    object,
    np._core.multiarray._reconstruct,  # pyright: ignore[reportAttributeAccessIssue]
    np._core.multiarray.scalar,  # pyright: ignore[reportAttributeAccessIssue]
    np.ndarray,
    codecs.encode,
    slice,
)


def loads(data: bytes, encoding: str = "ASCII") -> Any:
    """Returns the value of a pickle of Python 2 or 3.

    Args:
        data: the pickle.
        encoding: of texts of Python 2.

    Raises:
        UnpicklingError: it names another class or function, or is damaged; other errors for other damage.
    """
    return _Unpickler(io.BytesIO(data), encoding=encoding).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _PACKAGES:
            found = super().find_class(module.replace("numpy.core", "numpy._core"), name)
            if found in _NAMES or isinstance(found, np.ufunc):
                return found
            if isinstance(found, type) and _is_plain(found):
                return found
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and only arrays and estimators of scikit-learn are read"
        )


def _is_plain(kind: type) -> bool:
    """Returns whether a class is of a dtype, a scalar of NumPy, or an estimator or a selector of scikit-learn."""
    if not kind.__module__.startswith("sklearn."):
        return issubclass(kind, np.generic | np.dtype)
    from sklearn.base import BaseEstimator
    from sklearn.compose import make_column_selector

    return issubclass(kind, BaseEstimator | make_column_selector)
