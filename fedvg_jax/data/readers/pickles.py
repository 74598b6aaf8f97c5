"""Reads pickled byte arrays and plain containers, as in CIFAR's python archives, without running their code."""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.host.files import reason


def loads(data: bytes, source: object) -> Any:
    """Returns the pickled numbers, text (Python 2's as bytes), lists, tuples, dicts and uint8 arrays.

    Args:
        data: a pickle of protocol 2, 3 or 4, written by Python 2 or 3.
        source: its name in errors.

    Raises:
        UsageError: the pickle is damaged, or holds other objects.

    >>> import pickle
    >>> loads(pickle.dumps({"labels": [3, 1]}), "a file")
    {'labels': [3, 1]}
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{source}: {reason(error)}; fetch it again") from None
    except Exception as error:  # a damaged pickle raises what its first bad byte leads to
        raise UsageError(f"{source}: not a complete pickle ({reason(error)}); fetch it again") from error


def _uint8(code: Any, *_: Any) -> np.dtype:
    """Returns the dtype of bytes, whose state a pickle cannot change."""
    if code not in ("u1", b"u1", "|u1", b"|u1"):
        raise UsageError(f"the pickle holds an array of dtype {str(code)[:20]!r}, and only 'u1' (uint8) is read")
    return np.dtype(np.uint8)


_NAMES = {
    "numpy.core.multiarray._reconstruct": np._core.multiarray._reconstruct,  # pyright: ignore[reportAttributeAccessIssue]
    "numpy._core.multiarray._reconstruct": np._core.multiarray._reconstruct,  # pyright: ignore[reportAttributeAccessIssue]
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _uint8,
    "_codecs.encode": codecs.encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise UsageError(f"the pickle asks for {module}.{name}, and only plain arrays are read")
        return _NAMES[f"{module}.{name}"]
