"""Reads pickled byte arrays and plain containers, as in CIFAR's python archives; refuses every other pickle.

Python's own unpickler runs with the few opcodes that such files need. It imports nothing: the names that arrays need
stand for methods of this module. `pickle.Unpickler`, in C, cannot be limited so: a memo index of 2**27 takes 2 GB in
it, and a dict's key of 200,000 nested tuples ends the process.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reason

MAX_BYTES = 2**28
"""Largest pickle in bytes; the largest published one, CIFAR-100's training set, has 155 million."""

MAX_OPCODES = 2**22
"""Most opcodes of a pickle. They bound the memory of small objects; CIFAR-100 has some 400,000."""

_UINT8 = np.dtype(np.uint8)


def loads(data: bytes, source: object) -> Any:
    """Returns the pickled numbers, text (Python 2's as bytes), lists, tuples, dicts and uint8 arrays.

    Args:
        data: a pickle of protocol 2, 3 or 4, written by Python 2 or 3.
        source: its name in errors.

    Raises:
        UsageError: the pickle is damaged, exceeds `MAX_BYTES` or `MAX_OPCODES`, or holds other objects.

    >>> import pickle
    >>> loads(pickle.dumps({"labels": [3, 1]}), "a file")
    {'labels': [3, 1]}
    """
    try:
        return _Unpickler(data).load()
    except UsageError as error:
        raise UsageError(f"{source}: {reason(error)}; fetch it again") from None
    except Exception as error:  # a damaged pickle raises what its first bad byte leads to
        raise UsageError(f"{source}: not a complete pickle ({reason(error)}); fetch it again") from error


class _Opcodes(dict):
    """Byte of an opcode -> its method; counts those that are read."""

    num_read = 0

    def __getitem__(self, code: int) -> Callable:
        self.num_read += 1
        if self.num_read > MAX_OPCODES:
            raise UsageError(f"a pickle of more than {MAX_OPCODES:,} opcodes")
        if code not in self:
            name = next(opcode.name for opcode in pickletools.opcodes if opcode.code == chr(code))
            raise UsageError(f"the pickle holds a {name}, and only plain arrays and containers are read")
        return super().__getitem__(code)


_PYTHON: Any = pickle._Unpickler


class _Unpickler(_PYTHON):
    """Calls only the methods in `_NAMES`, sets the state of arrays only, and takes only text as keys."""

    def __init__(self, data: bytes):
        if len(data) > MAX_BYTES:
            raise UsageError(f"a pickle of {len(data):,} bytes; at most {MAX_BYTES:,} are read")
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.dispatch = _Opcodes(_METHODS)
        self.budget = 2 * len(data)  # a byte may be encoded from text and then copied into an array

    def load(self) -> Any:
        result = super().load()
        if self.stack or self.metastack:
            raise ValueError("more than one object")
        return result

    def find_class(self, module: str, name: str) -> Callable | None:
        if f"{module}.{name}" not in _NAMES:
            raise UsageError(f"the pickle asks for {module}.{name}, and only plain arrays are read")
        return _NAMES[f"{module}.{name}"]

    def load_reduce(self) -> None:
        arguments, method = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or method is None:  # *arguments of bytes would be as many numbers
            raise UsageError("the pickle makes an array in an odd way")
        self.append(method(self, *arguments))

    def reconstruct(self, kind: Any, shape: Any, code: Any) -> np.ndarray:
        return np.empty(0, np.uint8)

    def dtype(self, code: Any, align: Any = 0, copy: Any = 0) -> np.dtype:
        text = code.decode("latin1") if type(code) is bytes else code
        if text not in ("u1", "|u1"):
            name = text[:20] if type(text) is str else type(text).__name__
            raise UsageError(f"the pickle holds an array of dtype {name!r}, and only 'u1' (uint8) is read")
        return _UINT8

    def encode(self, text: Any, encoding: Any) -> bytes:
        """Returns bytes that Python 3 pickled as text for Python 2."""
        if type(text) is not str or encoding not in ("latin1", b"latin1"):
            raise UsageError("the pickle holds text in an odd encoding")
        self.spend(len(text))
        return text.encode("latin1")

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:  # one text, used many times
            raise UsageError("the pickle holds more text than bytes")

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if target is _UINT8 and all(part is None for part in state[2:5]):
            return
        if target is _UINT8:
            raise UsageError("the pickle holds an array with fields, and only 'u1' (uint8) is read")
        if type(target) is not np.ndarray:
            raise ValueError("a state for an object that is not an array")
        _, shape, dtype, _, content = state
        is_shape = type(shape) is tuple and 1 <= len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or math.prod(n or 1 for n in shape) > MAX_BYTES:
            raise UsageError("the pickle holds an array of an odd shape")
        if dtype is not _UINT8 or type(content) is not bytes or math.prod(shape) != len(content):
            raise UsageError(f"the pickle holds an array {list(shape)} whose bytes do not fit its shape")
        self.spend(len(content))
        target.__setstate__(state)

    def update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict or any(type(key) not in (str, bytes) for key in items[::2]):
            raise ValueError("an entry for no dict, or a key that is not text")  # others could be chosen to collide
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def check_number(self) -> None:
        if self.stack[-1].bit_length() > 64:
            raise UsageError("the pickle holds a number of more than 64 bits")


_NAMES = {
    "numpy.core.multiarray._reconstruct": _Unpickler.reconstruct,
    "numpy._core.multiarray._reconstruct": _Unpickler.reconstruct,
    "numpy.ndarray": None,
    "numpy.dtype": _Unpickler.dtype,
    "_codecs.encode": _Unpickler.encode,
}
_OPCODES = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 BINFLOAT BINBYTES SHORT_BINBYTES BINBYTES8
BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING EMPTY_LIST EMPTY_TUPLE EMPTY_DICT TUPLE TUPLE1 TUPLE2
TUPLE3 APPEND APPENDS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL
"""
_METHODS = {code[0]: _PYTHON.dispatch[code[0]] for code in (getattr(pickle, name) for name in _OPCODES.split())} | {
    pickle.LONG1[0]: lambda self: (_PYTHON.load_long1(self), self.check_number()),
    pickle.LONG4[0]: lambda self: (_PYTHON.load_long4(self), self.check_number()),
    pickle.SETITEM[0]: lambda self: self.update([self.stack.pop(-2), self.stack.pop()]),
    pickle.SETITEMS[0]: lambda self: self.update(self.pop_mark()),
    pickle.REDUCE[0]: _Unpickler.load_reduce,
    pickle.BUILD[0]: _Unpickler.load_build,
}
"""Byte of an opcode -> its effect, for the opcodes in pickles of plain arrays and containers."""
