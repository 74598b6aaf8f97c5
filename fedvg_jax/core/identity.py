"""Digests of what a call gets from Python, so that a later call can tell whether it gets the same.

A function counts by its instructions and constants, its defaults, and the values and functions that it reads from
enclosing functions and, where these cannot change in place, from its module. Comments, line numbers and file names do
not count. An array counts by dtype, shape and content, an object by its class and what `pickle` would
store of it. Code of installed packages, of Python and of this package counts by its name.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import inspect
import sys
import types
import uuid
from collections.abc import Iterable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.dtype, Path)
"""Types that are compared by the text of their values."""

UNSEEN = " holds a "
"""Stands in a digest before the type of a part that has none."""

POSITIONS = ("__doc__", "__firstlineno__", "__qualname__", "__module__", "__static_attributes__")
"""Members of a class that say where or how it is written."""

OF_CODE = ("code", "consts", "names", "varnames", "flags", "exceptiontable")
OF_CODE += ("argcount", "posonlyargcount", "kwonlyargcount")
"""Attributes of compiled code that count, after their prefix `co_`."""


class Identity(NamedTuple):
    """What tells an object from others."""

    digest: str
    """equal for equal objects, also in other processes"""
    unseen: tuple[str, ...] = ()
    """types of parts that have no digest, such as a lock; with one, `digest` equals no other"""


def identify(value: Any) -> Identity:
    """Returns the identity of an object from Python: functions, arrays, containers, instances of classes.

    >>> double, same, triple = (eval(f"lambda x: {text}", {}) for text in ("2 * x", "2 * x  # twice", "3 * x"))
    >>> identify(double) == identify(same), identify(double) == identify(triple)
    (True, False)
    >>> import threading
    >>> identify(threading.Lock()).unseen
    ('lock',)
    """
    walk = _Walk({}, [], [])
    digest, unseen = walk.digest(value).hex()[:32], tuple(dict.fromkeys(walk.unseen))
    return Identity(f"{digest}{UNSEEN}{unseen[0]}" if unseen else digest, unseen)


class _Walk(NamedTuple):
    """The digests of one object and of all that it holds."""

    done: dict[int, bytes]
    """id of a part -> its digest"""
    alive: list[Any]
    """parts with a digest; they are kept so that no other object gets their id"""
    unseen: list[str]

    def digest(self, value: Any) -> bytes:
        """Returns the digest of a part."""
        if isinstance(value, SCALARS):
            return _hash(type(value).__name__, repr(value))
        if id(value) not in self.done:
            # until it is known: cycles end here
            self.done[id(value)] = _hash("within itself", str(len(self.done)))
            self.alive.append(value)
            self.done[id(value)] = self._of_object(value)
        return self.done[id(value)]

    def _all(self, kind: str, parts: Iterable[Any]) -> bytes:
        return _hash(kind, *map(self.digest, parts))

    def _of_object(self, value: Any) -> bytes:
        # arrays of NumPy, JAX, PyTorch
        if isinstance(value, np.generic) or hasattr(type(value), "__dlpack__"):
            return _of_array(value)
        if isinstance(value, types.CodeType):
            return self._all("code", (getattr(value, f"co_{name}") for name in OF_CODE))
        if isinstance(value, types.ModuleType):
            return _hash("module", value.__name__)
        if isinstance(value, (tuple, list)):
            return self._all("sequence", (type(value), *value))
        if isinstance(value, (set, frozenset)):
            return _hash("set", *sorted(map(self.digest, value)))
        if isinstance(value, Mapping):
            return _hash("mapping", *sorted(self._all("item", item) for item in value.items()))
        if isinstance(value, (property, staticmethod, classmethod)):
            functions = (getattr(value, name, None) for name in ("fget", "fset", "__func__"))
            return self._all("descriptor", functions)
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, type):
            return self._of_class(value)
        # jax.jit, functools.lru_cache
        if hasattr(value, "__wrapped__") and _is_installed(type(value)):
            return self.digest(inspect.unwrap(value))
        return self._of_instance(value)

    def _of_function(self, function: types.FunctionType) -> bytes:
        captured = [_content(cell) for cell in function.__closure__ or ()]
        arguments = (function.__defaults__, function.__kwdefaults__, *captured)
        # `__module__` is that of what it wraps
        if not _is_installed_module(function.__globals__.get("__name__", "")):
            return self._all("function", (function.__code__, arguments, _read_values(function)))
        # a wrapper of this package or of another one counts as what it wraps
        if hasattr(function, "__wrapped__"):
            return self.digest(function.__wrapped__)
        return self._all(_full_name(function), arguments)

    def _of_class(self, cls: type) -> bytes:
        if _is_installed(cls):
            return _hash(_full_name(cls))
        seen = (*SCALARS, tuple, type, types.FunctionType, property, staticmethod, classmethod)
        members = {n: v for n, v in vars(cls).items() if isinstance(v, seen) and n not in POSITIONS}
        return self._all("class", (cls.__name__, cls.__bases__, members))

    def _of_instance(self, value: Any) -> bytes:
        cls = type(value)
        if _is_named(value):
            return _hash(_full_name(value))
        if dataclasses.is_dataclass(value) and any(
            base.__module__.startswith("flax.linen") for base in cls.__mro__
        ):
            fields = {
                field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)
            }
            # other attributes number its instances
            return self._all("module of Flax", (cls, fields))
        reduce = copyreg.dispatch_table.get(cls)
        try:
            make, arguments, *state = (reduce or methodcaller("__reduce_ex__", 4))(value)
        except Exception:  # of whatever kind: the class decides what it raises
            self.unseen.append(cls.__name__)
            return _hash("unseen", uuid.uuid4().hex)
        attributes, *items = *state, None, None, None
        listed = [list(iterator or ()) for iterator in items[:2]]
        return self._all("instance", (make, arguments, attributes, *listed))


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _of_array(value: Any) -> bytes:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        return _hash("objects", repr(array.tolist()))
    return _hash("array", str(array.dtype), str(array.shape), np.ascontiguousarray(array).tobytes())


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "unassigned"


def _read_values(function: types.FunctionType) -> dict[str, Any]:
    """Returns name -> value of what a function may read from modules, if it cannot change in place."""
    names, values = _names(function.__code__), function.__globals__
    read = {name: values[name] for name in names & values.keys()}
    for module in [value for value in read.values() if isinstance(value, types.ModuleType)]:
        if not _is_installed_module(module.__name__):
            members = names & vars(module).keys()
            read |= {f"{module.__name__}.{name}": vars(module)[name] for name in members}
    fixed = (*SCALARS, tuple, frozenset, jax.Array, np.ndarray, types.ModuleType)
    return {n: value for n, value in read.items() if isinstance(value, fixed) or callable(value)}


def _names(code: types.CodeType) -> set[str]:
    """Returns the names of globals and attributes in code, and in functions inside it."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return {*code.co_names}.union(*inner)


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_named(value: Any) -> bool:
    """Returns whether an object is found under its name in an installed module, such as `math.sqrt`."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return False
    return _is_installed(value) and getattr(sys.modules.get(module), name, None) is value


@functools.cache
def _is_installed_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top in ("fedvg_jax", *sys.stdlib_module_names):
        return top != "__main__"
    path = getattr(sys.modules.get(top), "__file__", None)
    return path is not None and bool({"site-packages", "dist-packages"} & {*Path(path).parts})


def _is_installed(value: Any) -> bool:
    """Returns whether a function or a class is of this package, of Python, or of an installed package."""
    return _is_installed_module(str(getattr(value, "__module__", "")))
