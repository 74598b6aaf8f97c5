"""Keys of functions and objects by the values that they read, so that equal ones share a compiled program.

A function is its code, its defaults, and the values of its closure; a user's function also the globals that it names.
So a factory that is called twice returns equal functions, and a function whose global has changed differs from itself.
Objects are equal to themselves only, unless their class says otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import dis
import functools
import hashlib
import sys
import sysconfig
import types
import weakref
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_PACKAGE = str(Path(__file__).parents[1])
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, also of the user's own or of another environment on the path."""

_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, _PACKAGE)

_MOST_BYTES = 2**20
"""Largest JAX array that is compared by value; it never changes, so a larger one is equal to itself."""

_latest: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Function -> hash of its latest key."""


class _Itself:
    """Compares an object by identity."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value


def key_of(value: Any) -> Hashable:
    """Returns a key that is equal for values that are equal now, with what functions among them read.

    JAX traces a function once. Where a function reads other values than at the latest call, what JAX has traced and
    compiled in this process is dropped.

    >>> def factory(rate):
    ...     return lambda x: rate * x
    >>> key_of(factory(0.5)) == key_of(factory(0.5)), key_of(factory(0.5)) == key_of(factory(1.0))
    (True, False)
    """
    return _key(value, frozenset(), None)


def _key(value: Any, names: frozenset[str], seen: dict | None) -> Hashable:
    """Returns the key of a value.

    Args:
        names: attributes that are read of it.
        seen: objects of the function that is being keyed, which may refer to each other; None outside of functions.
    """
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, np.ndarray | jax.Array):
        return _key_of_array(value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(_key(entry, names, seen) for entry in value)
    if isinstance(value, Mapping):
        return type(value), tuple((_key(name, names, seen), _key(entry, names, seen)) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_key(entry, names, seen) for entry in value)
    if seen is not None:
        return _key_of_object(value, names, seen)
    key = _key_of_object(value, names, {})
    try:
        if _latest.setdefault(value, hash(key)) != hash(key):
            _latest[value] = hash(key)
            jax.clear_caches()
    except TypeError:  # it has no hash or no weak references
        pass
    return key


def _key_of_array(value: np.ndarray | jax.Array) -> Hashable:
    if isinstance(value, jax.Array):
        is_small = not isinstance(value, Tracer) and value.is_fully_addressable and value.nbytes <= _MOST_BYTES
        if not is_small or jnp.issubdtype(value.dtype, jax.dtypes.extended):
            return _Itself(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        return _Itself(value)
    return type(value), array.dtype.str, array.shape, hashlib.blake2b(array.tobytes()).digest()


def _key_of_object(value: Any, names: frozenset[str], seen: dict) -> Hashable:
    """Returns the key of a value that may refer to itself."""
    place = id(value), names
    if place in seen:
        return seen[place][0]
    seen[place] = len(seen), value  # kept, so that no other object gets its number

    def keys(*values: Any, names: frozenset[str] = names) -> tuple[Hashable, ...]:
        return tuple(_key(entry, names, seen) for entry in values)

    if isinstance(value, types.FunctionType):
        return value.__globals__.get("__name__"), value.__code__, keys(*_read_by(value), names=_names(value.__code__))
    if isinstance(value, types.MethodType):
        return keys(value.__func__, value.__self__, names=_names(value.__func__.__code__))
    if isinstance(value, functools.partial):
        return keys(value.func, value.args, value.keywords)
    if isinstance(value, types.ModuleType):
        return (value, *keys(_attributes(value, names) if _is_users(value.__name__) else None))
    if isinstance(value, type):
        return (value, *keys(*_members(value)))
    if dataclasses.is_dataclass(value) and (_is_users(type(value).__module__) or value.__hash__ is None):
        return keys(type(value), *[getattr(value, f.name, None) for f in dataclasses.fields(value) if f.compare])
    if isinstance(value, _NAMESPACES) or _is_users(type(value).__module__):
        methods = [m for m in _members(type(value)) if isinstance(m, types.FunctionType) and m.__name__ != "__init__"]
        names = names.union(*[_names(method.__code__) for method in methods])
        return (_Itself(value), *keys(type(value), _attributes(value, names)))
    if wrapped := getattr(value, "__wrapped__", None):  # as of jax.jit
        return (_Itself(value), *keys(wrapped))
    try:
        children, structure = jax.tree.flatten(value, is_leaf=lambda node: node is not value)
        hash(structure)
        if not jax.tree_util.treedef_is_leaf(structure):
            return structure, keys(*children)
        hash(value)
        return type(value), value
    except TypeError:
        return _Itself(value)


def _read_by(function: types.FunctionType) -> list[Any]:
    """Returns what a function reads beside its arguments."""
    read = [function.__defaults__, function.__kwdefaults__, {**vars(function), "__wrapped__": None}]
    for cell in function.__closure__ or ():
        try:
            read.append(cell.cell_contents)
        except ValueError:  # not yet assigned
            read.append("")
    if _is_users(function.__globals__.get("__name__")):
        names = sorted(_names(function.__code__, ("LOAD_GLOBAL", "LOAD_NAME")))
        read += map(function.__globals__.get, names)
    return read


@functools.lru_cache(1024)
def _names(code: types.CodeType, operations: tuple[str, ...] = ()) -> frozenset[str]:
    """Returns the names in a function and in those inside it, of some operations or of all."""
    inner = [_names(constant, operations) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    steps = dis.get_instructions(code) if operations else ()
    named = [step.argval for step in steps if step.opname in operations]
    return frozenset(named if operations else code.co_names).union(*inner)


def _attributes(value: Any, names: frozenset[str]) -> dict[str, Any]:
    held = getattr(value, "__dict__", {})
    return {name: held[name] for name in sorted(names & held.keys())}


def _members(cls: type) -> list[Any]:
    """Returns the functions and plain values that a user's class and its bases define."""
    members = [member for base in cls.__mro__ if _is_users(base.__module__) for member in vars(base).values()]
    members = [getattr(member, "__func__", getattr(member, "fget", member)) for member in members]
    return [member for member in members if isinstance(member, (types.FunctionType, *_PLAIN))]


@functools.cache
def _is_users(module: str | None) -> bool:
    """Returns whether a module is neither of this package nor installed; so are a notebook's and a script's."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    is_own = file is not None and not file.startswith(_LIBRARIES) and _INSTALLED.isdisjoint(Path(file).parts)
    return module in (None, "__main__") or is_own
