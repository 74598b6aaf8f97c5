"""Reads pickled byte arrays and plain containers, as in CIFAR's python archives; refuses every other pickle.

`pickle.Unpickler` imports nothing here: the names that arrays need stand for methods of this module. Its C code can
still be made to take any memory (a memo index of 2**27 takes 2 GB) or to end the process (a dict's key of 200,000
nested tuples), so the opcodes are counted before it runs.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.host.files import reason

MAX_BYTES = 2**28
"""Largest pickle in bytes; the largest published one, CIFAR-100's training set, has 155 million."""

MAX_OPCODES = 2**22
"""Most opcodes of a pickle. They bound the memory of small objects; CIFAR-100 has some 400,000."""

MAX_TUPLES = 32
"""Most tuples of a pickle, of which an array has up to seven. They bound the nesting of keys, and the memory too:
every copy of the pickle's bytes needs one."""


def loads(data: bytes, source: object) -> Any:
    """Returns the pickled numbers, text (Python 2's as bytes), lists, tuples, dicts and uint8 arrays.

    Args:
        data: a pickle of protocol 2, 3 or 4, written by Python 2 or 3.
        source: its name in errors.

    Raises:
        UsageError: the pickle is damaged, exceeds a limit of this module, or holds other objects.

    >>> import pickle
    >>> loads(pickle.dumps({"labels": [3, 1]}), "a file")
    {'labels': [3, 1]}
    """
    try:
        _check_opcodes(data)
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{source}: {reason(error)}; fetch it again") from None
    except Exception as error:  # a damaged pickle raises what its first bad byte leads to
        raise UsageError(f"{source}: not a complete pickle ({reason(error)}); fetch it again") from error


def _check_opcodes(data: bytes) -> None:
    """Raises a UsageError for a pickle of which the unpickler could take too much memory, or too deep a recursion."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"a pickle of {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    num_tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        num_tuples += opcode.name.startswith("TUPLE")
        if number >= MAX_OPCODES or num_tuples > MAX_TUPLES:
            raise UsageError(f"a pickle of more than {MAX_OPCODES:,} opcodes or {MAX_TUPLES:,} tuples")
        if isinstance(argument, int) and argument.bit_length() > 64:
            raise UsageError("the pickle holds a number of more than 64 bits")
        if opcode.name == "LONG_BINPUT" and (argument or 0) > number:
            raise UsageError(f"the pickle memoises an object at {argument:,}, beyond its opcodes")


class _Array(np.ndarray):
    """An array of bytes whose state is checked."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        is_shape = type(shape) is tuple and 1 <= len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or math.prod(n or 1 for n in shape) > MAX_BYTES:
            raise UsageError("the pickle holds an array of an odd shape")
        if type(dtype) is not _Uint8 or type(content) is not bytes or math.prod(shape) != len(content):
            raise UsageError(f"the pickle holds an array {list(shape)} whose bytes do not fit its shape")
        checked: Any = (1, shape, np.dtype(np.uint8), bool(is_fortran), content)
        super().__setstate__(checked)


class _Uint8:
    """Stands for the dtype of bytes."""

    def __init__(self, code: Any, *_: Any):
        text = code.decode("latin1") if type(code) is bytes else code
        if text not in ("u1", "|u1"):
            name = text[:20] if type(text) is str else type(text).__name__
            raise UsageError(f"the pickle holds an array of dtype {name!r}, and only 'u1' (uint8) is read")

    def __setstate__(self, state: Any) -> None:
        if any(part is not None for part in state[2:5]):
            raise UsageError("the pickle holds an array with fields, and only 'u1' (uint8) is read")


def _reconstruct(*_: Any) -> _Array:
    return np.empty(0, np.uint8).view(_Array)


def _encode(text: Any, encoding: Any) -> bytes:
    """Returns bytes that Python 3 pickled as text for Python 2."""
    if type(text) is not str or encoding not in ("latin1", b"latin1"):
        raise UsageError("the pickle holds text in an odd encoding")
    return text.encode("latin1")


class _Call(tuple):
    """A tuple of one function, which a pickle can call and not change."""

    def __call__(self, *arguments: Any) -> Any:
        return self[0](*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state for an object that is not an array")


_NAMES = {
    "numpy.core.multiarray._reconstruct": _Call([_reconstruct]),
    "numpy._core.multiarray._reconstruct": _Call([_reconstruct]),
    "numpy.ndarray": None,
    "numpy.dtype": _Call([_Uint8]),
    "_codecs.encode": _Call([_encode]),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Call | None:
        if f"{module}.{name}" not in _NAMES:
            raise UsageError(f"the pickle asks for {module}.{name}, and only plain arrays are read")
        return _NAMES[f"{module}.{name}"]
