"""Pickled NumPy arrays and plain containers, as in CIFAR's python archives; anything else in a pickle is refused."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fedvg_jax.data.arrays import reason
from fedvg_jax.types import UsageError


def loads(data: bytes, source: object) -> Any:
    """What `data` holds: numbers, text (as bytes), lists, dicts and arrays.

    Args:
        data: a pickle of Python 2 or 3.
        source: its name in errors.

    Raises:
        UsageError: a damaged pickle, or one that asks for anything but arrays, which could run any code.
    """
    try:
        return _Arrays(io.BytesIO(data), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    except Exception as error:  # a damaged pickle raises what its first bad byte leads to
        raise UsageError(f"{source}: not a complete pickle ({reason(error)}); fetch it again") from error


class _Arrays(pickle.Unpickler):
    """An unpickler that knows arrays only: every other name is refused before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        found = _KNOWN.get((module, name))
        if found is None:
            raise UsageError(f"the pickle asks for {module}.{name}, and only plain arrays are read; fetch it again")
        return found


def _empty(kind: type, shape: object, code: object) -> np.ndarray:
    """The array that the pickle then fills."""
    return np.ndarray((0,), np.int8)


def _latin1(text: str, encoding: str) -> bytes:
    """Bytes, as Python 3 writes them into a pickle for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise UsageError("the pickle holds text in an odd encoding; fetch it again")
    return text.encode("latin1")


_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
