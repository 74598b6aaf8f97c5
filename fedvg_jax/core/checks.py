"""Checks of pytrees from users. Each raises a one-line UsageError that names the leaf and what is expected.

All checks except `distributions` use structures, shapes and dtypes only, so they also work while a program is traced.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.core import tree
from fedvg_jax.core.types import Hyperparameter, Tree, UsageError
from fedvg_jax.host import files


def stacked(pytree: Tree, what: str, num_clients: int | None = None, per_tensor: bool = False) -> int:
    """Returns K, the leading axis of every leaf.

    Args:
        pytree: leaves [K, ...] of floats.
        what: its name in messages.
        num_clients: K; None takes it from the first leaf.
        per_tensor: whether leaves must be [K].

    Raises:
        UsageError: for the first leaf of another shape or dtype.

    >>> stacked({"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, "client_params")
    3
    """
    leaves = tree.by_path(pytree)
    if not leaves:
        if num_clients is None:
            raise UsageError(f"{what} has no leaf; expected a pytree of arrays stacked over clients, [K, ...]")
        return num_clients
    floating(pytree, what)
    first, shape = next((path, jnp.shape(leaf)) for path, leaf in leaves.items())
    source = f"K = {num_clients} clients" if num_clients else f"the K of {what} leaf '{first}', {shape}"
    expected = num_clients or (shape[0] if shape else 0)
    for path, leaf in leaves.items():
        shape = jnp.shape(leaf)
        if shape[:1] != (expected,) or (per_tensor and len(shape) != 1) or not expected:
            allowed = f"({expected or 'K'}{',' if per_tensor else ', ...'})"
            raise UsageError(f"{what} leaf '{path}' has shape {shape}; expected {allowed}, from {source}")
    return expected


def floating(pytree: Tree, what: str) -> None:
    """Raises UsageError for the first leaf that is not of floats, which can be neither differentiated nor averaged.

    >>> floating({"w": jnp.ones(2)}, "params")
    """
    for path, leaf in tree.by_path(pytree).items():
        try:
            dtype = jnp.result_type(leaf)
        except TypeError:
            raise UsageError(f"{what} leaf '{path}' is a {type(leaf).__name__}; expected an array of floats") from None
        if not jnp.issubdtype(dtype, jnp.floating):
            shape = jnp.shape(leaf)
            raise UsageError(f"{what} leaf '{path}' is {dtype} of shape {shape}; expected floats of shape {shape}")


def same_structure(pytree: Tree, like: Tree, what: str, whose: str) -> None:
    """Raises UsageError unless two pytrees have the same structure, naming a leaf that only one of them has.

    Args:
        pytree: the pytree to check.
        like: the pytree with the expected structure.
        what: name of `pytree` in messages.
        whose: name of `like` in messages.

    >>> same_structure({"w": 1.0}, {"w": jnp.ones(2)}, "weights", "params")
    """
    if jax.tree.structure(pytree) == jax.tree.structure(like):
        return
    paths, expected = tree.paths(pytree), tree.paths(like)
    missing, extra = [p for p in expected if p not in paths], [p for p in paths if p not in expected]
    if missing:
        raise UsageError(f"{what} has no leaf '{missing[0]}'; expected the structure of {whose}: {', '.join(expected)}")
    if extra:
        raise UsageError(f"{what} has a leaf '{extra[0]}' that {whose} has not; expected {', '.join(expected)}")
    raise UsageError(f"{what} is {jax.tree.structure(pytree)}; expected the structure of {whose}, as it is")


def shaped_like(pytree: Tree, like: Tree, what: str, whose: str) -> None:
    """Raises UsageError for the first leaf of another shape; arguments as in `same_structure`.

    >>> shaped_like({"w": jnp.ones(2)}, {"w": jnp.zeros(2)}, "stats", "those before")
    """
    same_structure(pytree, like, what, whose)
    _refuse_other(pytree, like, what, whose, jnp.shape, "has shape")


def same_arrays(pytree: Tree, like: Tree, what: str, whose: str) -> None:
    """Raises UsageError for the first leaf of another shape or dtype; arguments as in `same_structure`.

    >>> same_arrays({"w": jnp.ones(2)}, {"w": jnp.zeros(2)}, "stats", "those before")
    """
    shaped_like(pytree, like, what, whose)
    _refuse_other(pytree, like, what, whose, jnp.result_type, "is")


def _refuse_other(pytree: Tree, like: Tree, what: str, whose: str, kind: Callable[[Any], Any], verb: str) -> None:
    """Raises UsageError for the first leaf that differs in shape or dtype."""
    for path, leaf, model in zip(tree.paths(like), jax.tree.leaves(pytree), jax.tree.leaves(like), strict=True):
        if kind(leaf) != kind(model):
            raise UsageError(f"{what} leaf '{path}' {verb} {kind(leaf)}; expected {kind(model)}, as {whose}")


def distributions(weights: Tree, num_clients: int, what: str = "weights", tolerance: float = 1e-4) -> None:
    """Raises UsageError for the first leaf that is not K numbers >= 0 with sum 1.

    Args:
        weights: concrete arrays [K].
        num_clients: K.
        what: name of `weights` in messages.
        tolerance: largest deviation of the sum from 1.

    >>> distributions({"w": jnp.array([0.75, 0.25])}, 2)
    """
    stacked(weights, what, num_clients, per_tensor=True)
    for path, leaf in tree.by_path(weights).items():
        values = np.asarray(leaf, np.float64)
        if not np.isfinite(values).all() or (values < 0).any():
            raise UsageError(f"{what} leaf '{path}' is {_short(values)}; expected ({num_clients},) numbers >= 0")
        if abs(values.sum() - 1) > tolerance:
            raise UsageError(f"{what} leaf '{path}' of shape ({num_clients},) sums to {values.sum():.6g}; expected 1")


def in_range(parameter: Hyperparameter, value: Any) -> Any:
    """Returns a value as a float; a traced number, which cannot be checked, as it is.

    Raises:
        UsageError: it is not a finite number, or not in the declared range.

    >>> in_range(Hyperparameter("p", 0.5, 0, 1), 2)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: hyperparameter 'p' must be in [0, 1]; got 2
    """
    if isinstance(value, jax.core.Tracer):  # pyright: ignore[reportAttributeAccessIssue]
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    above = number > parameter.low if parameter.excludes_low else number >= parameter.low
    below = number < parameter.high if parameter.excludes_high else number <= parameter.high
    if not (math.isfinite(number) and above and below):
        raise UsageError(f"hyperparameter '{parameter.name}' must be in {interval(parameter)}; got {value}")
    return number


def interval(parameter: Hyperparameter) -> str:
    """The range in mathematical notation.

    >>> interval(Hyperparameter("eps", 1e-3, 0, excludes_low=True))
    '(0, inf)'
    """
    opening = "(" if parameter.excludes_low or math.isinf(parameter.low) else "["
    closing = ")" if parameter.excludes_high or math.isinf(parameter.high) else "]"
    return f"{opening}{parameter.low:g}, {parameter.high:g}{closing}"


def num_rows(pytree: Tree, what: str) -> int:
    """Returns the length of all leaves of a pytree of rows.

    Raises:
        UsageError: they have several lengths, or there are no rows.

    >>> num_rows((jnp.ones((4, 2)), jnp.ones(4)), "data")
    4
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(pytree)]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise UsageError(f"{what} must be arrays of one length, of 1 or more rows; got shapes {shapes}")
    return shapes[0][0]


def takes_key(loss: Callable) -> bool:
    """Returns whether a task's loss draws random numbers: whether it has a parameter `key`.

    Raises:
        UsageError: unless the default of `key` is None, which stands for no randomness.

    >>> takes_key(lambda params, stats, batch, mask, train, key=None: (0.0, stats))
    True
    """
    key = inspect.signature(loss).parameters.get("key")
    if key is not None and key.default is not None:
        raise UsageError("task.loss: key needs the default None, because D_val is scored without a key; write key=None")
    return key is not None


def takes(function: Any, arguments: Sequence[str], what: str) -> None:
    """Raises UsageError unless a function can be called with these positional arguments.

    Args:
        function: a user's function. One without a signature, as some built-in functions, passes.
        arguments: their names.
        what: name of the function in messages.

    >>> takes(lambda hyper, signals: None, ("hyper", "signals", "view"), "weighting.weigh")
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting.weigh takes (hyper, signals); it is called with (hyper, signals, view)
    """
    listed = f"({', '.join(arguments)})"
    if not callable(function):
        raise UsageError(f"{what} is a {type(function).__name__}; expected a function of {listed}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        names = ", ".join(map(str, signature.parameters.values()))
        raise UsageError(f"{what} takes ({names}); it is called with {listed}") from None


@contextlib.contextmanager
def calling(what: str, **named_values: Any) -> Iterator[None]:
    """Reports an error of a user's function as a UsageError of one line. The error stays its cause, with the traceback.

    Args:
        what: name of the function.
        named_values: arguments of the function that may be mappings; a missing key lists their names.

    >>> with calling("weighting.signal", hyper={"lr": 0.1}):
    ...     {}["tempo"]
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting.signal failed: there is no 'tempo'; hyper has lr (declare others in defaults)
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what} failed: {_cause(error, named_values)}") from error


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """Removes the note on hidden frames that jax adds to a UsageError raised while it traces."""
    try:
        yield
    except UsageError as error:
        raise UsageError(*error.args) from error.__cause__


def _cause(error: Exception, named_values: Mapping[str, Any]) -> str:
    """Returns the reason of an error in a user's function, and what to do where that is known."""
    mappings = {name: value for name, value in named_values.items() if isinstance(value, Mapping)}
    if isinstance(error, KeyError) and mappings:
        known = ", ".join(f"{name} has {', '.join(map(str, sorted(value)))}" for name, value in mappings.items())
        hint = " (declare others in defaults)" if "hyper" in mappings else ""
        return f"there is no {error.args[0]!r}; {known}{hint}"
    if isinstance(error, (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)):
        return "its arguments are traced, without values; use jax.numpy in place of NumPy, float(...) and if"
    return f"{type(error).__name__}: {files.reason(error)}"


def named(known: Mapping[str, Any], name: str, what: str) -> Any:
    """Returns the entry of `known` under a name.

    Args:
        known: name -> entry.
        name: the name to look up.
        what: what it names, for messages.

    Raises:
        UsageError: for an unknown name; it lists the allowed names.

    >>> named({"l1": 1, "l2": 2}, "l2", "norm")
    2
    """
    if name not in list(known):  # which an unhashable value is not in either
        raise UsageError(f"unknown {what} '{name}'; there are {', '.join(known)}")
    return known[name]


def _short(values: np.ndarray) -> str:
    """Returns an array as one line of text, abbreviated from 8 numbers on."""
    return np.array2string(values, precision=3, threshold=8).replace("\n", " ")
