"""Reads pickled byte arrays and plain containers, as in CIFAR's python archives; refuses every other pickle.

`loads` does not unpickle. It interprets the few opcodes that such files need: it imports no name, calls no object of
the file, and sets no state. Arrays are views of bytes whose length is compared with the shape.
"""

from __future__ import annotations

import itertools
import math
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reason

MAX_BYTES = 2**28
"""Largest pickle in bytes; the largest published one, CIFAR-100's training set, has 155 million."""

MAX_OPCODES = 2**22
"""Most opcodes of a pickle. They bound the time, at about 2 microseconds each; CIFAR-100 has some 400,000."""

_MAX_AXES = 4

_RECENT = 64
"""Last objects of the memo that are searched for an array when it is filled; NumPy writes ten in between."""


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
        return _interpret(data)
    except UsageError as error:
        raise UsageError(f"{source}: {reason(error)}; fetch it again") from None
    except Exception as error:  # a damaged pickle raises what its first bad byte leads to
        raise UsageError(f"{source}: not a complete pickle ({reason(error)}); fetch it again") from error


class _Mark:
    """Beginning of a list, tuple or dict on the stack."""


class _Name(NamedTuple):
    """A global of the pickle, one of `_NAMES`; it is not imported."""

    what: str


class _Bytes8(NamedTuple):
    """The dtype uint8, the only supported one."""


class _Unfilled:
    """An array before the opcode BUILD sets its shape and bytes."""


class _Machine(NamedTuple):
    """The state of the interpreter."""

    stack: list[Any]
    memo: dict[int, Any]
    budget: list[int]
    """[remaining bytes to which text may be encoded]."""


_NAMES = {
    "numpy.core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy._core.multiarray _reconstruct": _Name("reconstruct"),
    "numpy ndarray": _Name("ndarray"),
    "numpy dtype": _Name("dtype"),
    "_codecs encode": _Name("encode"),
}


def _interpret(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise UsageError(f"a pickle of {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    machine = _Machine([], {}, [len(data)])
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number >= MAX_OPCODES:
            raise UsageError(f"a pickle of more than {MAX_OPCODES:,} opcodes")
        if opcode.name == "STOP":
            break
        act = _OPCODES.get(opcode.name)
        if act is None:
            raise UsageError(f"the pickle holds a {opcode.name}, and only plain arrays and containers are read")
        act(machine, argument)
    (result,) = machine.stack
    return result


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _push_long(machine: _Machine, number: int) -> None:
    if number.bit_length() > 64:
        raise UsageError("the pickle holds a number of more than 64 bits")
    machine.stack.append(number)


def _push_name(machine: _Machine, name: str) -> None:
    if name not in _NAMES:
        raise UsageError(f"the pickle asks for {'.'.join(name.split(' '))}, and only plain arrays are read")
    machine.stack.append(_NAMES[name])


def _stacked_name(machine: _Machine, _: None) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise ValueError("a name that is not text")
    _push_name(machine, f"{module} {name}")


def _pop_to_mark(machine: _Machine) -> list[Any]:
    stack, items = machine.stack, []
    while type(item := stack.pop()) is not _Mark:
        items.append(item)
    return items[::-1]


def _container(kind: type) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: _push(machine, _of_kind(kind, _pop_to_mark(machine)))


def _of_kind(kind: type, items: list[Any]) -> Any:
    if kind is not dict:
        return kind(items)
    mapping: dict[Any, Any] = {}
    _fill(mapping, items)
    return mapping


def _short_tuple(size: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: None) -> None:
        items = tuple(machine.stack.pop() for _ in range(size))
        machine.stack.append(items[::-1])

    return act


def _append(machine: _Machine, _: None) -> None:
    _extend(machine, [machine.stack.pop()])


def _append_all(machine: _Machine, _: None) -> None:
    _extend(machine, _pop_to_mark(machine))


def _extend(machine: _Machine, items: list[Any]) -> None:
    if type(machine.stack[-1]) is not list:
        raise ValueError("an item for an object that is not a list")
    machine.stack[-1].extend(items)


def _set_item(machine: _Machine, _: None) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _fill(machine.stack[-1], [key, value])


def _set_items(machine: _Machine, _: None) -> None:
    items = _pop_to_mark(machine)
    _fill(machine.stack[-1], items)


def _fill(mapping: Any, items: list[Any]) -> None:
    if type(mapping) is not dict or len(items) % 2 or any(type(key) not in (str, bytes) for key in items[::2]):
        raise ValueError(
            "an entry for an object that is not a dict, or a key that is not text"
        )  # other keys could be chosen to collide
    mapping.update(zip(items[::2], items[1::2], strict=True))


def _remember(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _remember_next(machine: _Machine, _: None) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _recall(machine: _Machine, place: int) -> None:
    machine.stack.append(machine.memo[place])


def _call(machine: _Machine, _: None) -> None:
    arguments, name = machine.stack.pop(), machine.stack.pop()
    if type(name) is not _Name or type(arguments) is not tuple:
        raise ValueError("a call of an object that is not a name")
    machine.stack.append(_CALLS[name.what](machine, *arguments))


def _unfilled(machine: _Machine, kind: Any, shape: Any, code: Any) -> _Unfilled:
    return _Unfilled()


def _dtype(machine: _Machine, code: Any, align: Any = 0, copy: Any = 0) -> _Bytes8:
    text = code.decode("latin1") if type(code) is bytes else code
    if text not in ("u1", "|u1"):
        raise UsageError(f"the pickle holds an array of dtype {str(text)[:20]!r}, and only 'u1' (uint8) is read")
    return _Bytes8()


def _encoded(machine: _Machine, text: Any, encoding: Any) -> bytes:
    """Returns bytes that Python 3 pickled as text for Python 2."""
    if type(text) is not str or encoding not in ("latin1", b"latin1"):
        raise UsageError("the pickle holds text in an odd encoding")
    machine.budget[0] -= len(text)
    if machine.budget[0] < 0:  # one text, encoded many times
        raise UsageError("the pickle holds more text than bytes")
    return text.encode("latin1")


def _refuse_call(machine: _Machine, *_: Any) -> None:
    raise UsageError("the pickle makes an array in an odd way")


def _build(machine: _Machine, _: None) -> None:
    """Fills an array, or checks the state of its dtype."""
    state, unfilled = machine.stack.pop(), machine.stack[-1]
    if type(state) is not tuple:
        raise ValueError("a state that is not a tuple")
    if type(unfilled) is _Bytes8:
        if any(part is not None for part in state[2:5]):
            raise UsageError("the pickle holds an array with fields, and only 'u1' (uint8) is read")
        return
    if type(unfilled) is not _Unfilled:
        raise ValueError("a state for an object that is not an array")
    machine.stack[-1] = array = _array(*state)
    recent = itertools.islice(reversed(machine.memo.items()), _RECENT)
    machine.memo.update({place: array for place, value in recent if value is unfilled})


def _array(version: Any, shape: Any, dtype: Any, is_fortran: Any, content: Any) -> np.ndarray:
    if type(content) is str:  # Python 2's bytes
        content = content.encode("latin1")
    is_shape = type(shape) is tuple and 1 <= len(shape) <= _MAX_AXES
    if not is_shape or not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
        raise UsageError("the pickle holds an array of an odd shape")
    if type(dtype) is not _Bytes8 or type(content) is not bytes or math.prod(shape) != len(content):
        raise UsageError(f"the pickle holds an array {list(shape)} whose bytes do not fit its shape")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


_CALLS: dict[str, Callable] = {
    "reconstruct": _unfilled,
    "ndarray": _refuse_call,
    "dtype": _dtype,
    "encode": _encoded,
}

_VALUES = ("BININT", "BININT1", "BININT2", "BINFLOAT")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_STRINGS = ("BINSTRING", "SHORT_BINSTRING")

_OPCODES: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys((*_VALUES, *_BYTES, *_TEXTS), _push),
    **dict.fromkeys(("LONG1", "LONG4"), _push_long),
    **dict.fromkeys(_STRINGS, lambda machine, text: _push(machine, text.encode("latin1"))),
    "NONE": lambda machine, _: _push(machine, None),
    "NEWTRUE": lambda machine, _: _push(machine, True),
    "NEWFALSE": lambda machine, _: _push(machine, False),
    "MARK": lambda machine, _: _push(machine, _Mark()),
    "EMPTY_LIST": lambda machine, _: _push(machine, []),
    "EMPTY_TUPLE": lambda machine, _: _push(machine, ()),
    "EMPTY_DICT": lambda machine, _: _push(machine, {}),
    "LIST": _container(list),
    "TUPLE": _container(tuple),
    "DICT": _container(dict),
    **{f"TUPLE{size}": _short_tuple(size) for size in (1, 2, 3)},
    "APPEND": _append,
    "APPENDS": _append_all,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _remember),
    "MEMOIZE": _remember_next,
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _recall),
    "GLOBAL": _push_name,
    "STACK_GLOBAL": _stacked_name,
    "REDUCE": _call,
    "BUILD": _build,
}
"""Opcode -> its effect on the state, for the opcodes in pickles of plain arrays and containers."""
