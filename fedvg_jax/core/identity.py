"""Digests of what a call gets from Python, so that a later call can tell whether it gets the same.

A function counts by its instructions and constants, its defaults, and the values and functions that it reads from
enclosing functions and, where these cannot change in place, from its module. Comments, line numbers and file names do
not count. An array counts by dtype, shape and content, a module of Flax by its class and fields, any other object
by what `pickle` would store of it. Code of installed packages, of Python and of this package counts by its name.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import sys
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SCALARS = (bool, int, float, complex, str, type(None), type(Ellipsis), np.dtype, Path)
"""Types that are compared by the text of their values."""

POSITIONS = ("__doc__", "__firstlineno__", "__qualname__", "__module__", "__static_attributes__")
"""Members of a class that say where or how it is written."""

OF_CODE = (
    *("code", "consts", "names", "varnames", "flags", "exceptiontable"),
    *("argcount", "posonlyargcount", "kwonlyargcount"),
)
"""Attributes of compiled code that count, after their prefix `co_`."""

REFUSED = "refused"
"""Kind of a part that `pickle` refuses."""

DESCRIPTORS = (property, staticmethod, classmethod)


def identify(value: Any) -> str:
    """Returns the digest of an object from Python: functions, arrays, containers, instances of classes.

    It is equal for equal objects, also in other processes. An object with a part that `pickle` refuses, such as a lock,
    equals no other; the digest names the first such part.

    >>> double, same, triple = (eval(f"lambda x: {text}", {}) for text in ("2 * x", "2 * x  # twice", "3 * x"))
    >>> identify(double) == identify(same), identify(double) == identify(triple)
    (True, False)
    """
    refused: list[str] = []
    digest = _digest(value, {}, refused).hex()[:32]
    return f"{digest} holds a {refused[0]}" if refused else digest


def _digest(value: Any, done: dict[int, tuple[bytes, Any]], refused: list[str]) -> bytes:
    """Returns the digest of a part.

    Args:
        value: the part.
        done: id of a part -> its digest, and the part itself, so that no other object gets its id.
        refused: types of parts that `pickle` refuses; grows.
    """
    if isinstance(value, bytes):
        return _hash("bytes", value)
    if isinstance(value, SCALARS):
        return _hash(type(value).__name__, repr(value).encode(errors="surrogatepass"))
    if id(value) not in done:
        # until it is known: cycles end here
        done[id(value)] = _hash("within itself", str(len(done)).encode()), value
        kind, parts = _split(value)
        if kind == REFUSED:
            refused.append(type(value).__name__)
        digests = [_digest(part, done, refused) for part in parts]
        if isinstance(value, (set, frozenset, Mapping)):
            digests.sort()
        done[id(value)] = _hash(kind, *digests), value
    return done[id(value)][0]


def _hash(kind: str, *parts: bytes) -> bytes:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _split(value: Any) -> tuple[str, Iterable[Any]]:
    """Returns the kind of an object, and the parts that it consists of."""
    # arrays of NumPy, JAX, PyTorch
    if isinstance(value, np.generic) or hasattr(type(value), "__dlpack__"):
        return "array", _parts_of_array(value)
    if isinstance(value, types.CodeType):
        return "code", [getattr(value, f"co_{name}") for name in OF_CODE]
    if isinstance(value, types.ModuleType):
        return "module", [value.__name__]
    if isinstance(value, (tuple, list)):
        return "sequence", [type(value), *value]
    if isinstance(value, (set, frozenset)):
        return "set", value
    if isinstance(value, Mapping):
        return "mapping", value.items()
    if isinstance(value, DESCRIPTORS):
        return "descriptor", [getattr(value, name, None) for name in ("fget", "fset", "__func__")]
    if isinstance(value, types.FunctionType):
        return "function", _parts_of_function(value)
    if isinstance(value, type):
        return "class", _parts_of_class(value)
    # jax.jit, functools.lru_cache
    if hasattr(value, "__wrapped__") and _is_installed(type(value).__module__):
        return "wrapper", [value.__wrapped__]
    is_module = any(base.__module__.startswith("flax.linen") for base in type(value).__mro__)
    if is_module and dataclasses.is_dataclass(value):  # other attributes number its instances
        fields = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return "dataclass", [type(value), *fields]
    try:
        return "instance", _parts_of_instance(value)
    except Exception:  # of whatever kind: the class decides what it raises
        return REFUSED, [uuid.uuid4().hex]


def _parts_of_array(value: Any) -> list[Any]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    content = array.tolist() if array.dtype.hasobject else array.tobytes()
    return [array.dtype, array.shape, content]


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    captured = [_content(cell) for cell in function.__closure__ or ()]
    arguments = [function.__defaults__, function.__kwdefaults__, *captured]
    # `__module__` names the module of what it wraps
    if _is_installed(function.__globals__.get("__name__", "")):
        return [_full_name(function), *arguments]
    return [function.__code__, _read_values(function), *arguments]


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
        if not _is_installed(module.__name__):
            members = names & vars(module).keys()
            read |= {f"{module.__name__}.{name}": vars(module)[name] for name in members}
    fixed = (*SCALARS, bytes, tuple, frozenset, jax.Array, np.ndarray, types.ModuleType)
    return {n: value for n, value in read.items() if isinstance(value, fixed) or callable(value)}


def _names(code: types.CodeType) -> set[str]:
    """Returns the names of globals and attributes in code, and in functions inside it."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return {*code.co_names}.union(*inner)


def _parts_of_class(cls: type) -> list[Any]:
    if _is_installed(cls.__module__):
        return [_full_name(cls)]
    seen = (*SCALARS, *DESCRIPTORS, bytes, tuple, type, types.FunctionType)
    members = {n: v for n, v in vars(cls).items() if isinstance(v, seen) and n not in POSITIONS}
    return [cls.__name__, cls.__bases__, members]


def _parts_of_instance(value: Any) -> list[Any]:
    reduce = copyreg.dispatch_table.get(type(value), methodcaller("__reduce_ex__", 4))
    reduced = reduce(value)
    if isinstance(reduced, str):  # its name in a module, such as `sqrt` of math
        return [getattr(value, "__module__", ""), reduced]
    # the items of lists and dictionaries are iterators
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


@functools.cache
def _is_installed(module: str) -> bool:
    """Returns whether a module is of this package, of Python, or of an installed package."""
    top = module.partition(".")[0]
    path = getattr(sys.modules.get(top), "__file__", None) or ""
    is_ours = top in ("fedvg_jax", *sys.stdlib_module_names)
    return is_ours or bool({"site-packages", "dist-packages"} & {*Path(path).parts})
