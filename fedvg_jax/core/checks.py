"""Checks of pytrees from users. Each raises a one-line UsageError that names the leaf and what is expected.

All checks use structures, shapes and dtypes only, so they also work while a program is traced.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from fedvg_jax.core import tree
from fedvg_jax.core.types import Hyperparameter, Tree, UsageError
from fedvg_jax.host import files


def expect(pytree: Tree, like: Tree, what: str, *, any_float: bool = False) -> None:
    """Raises UsageError for the first leaf at which two pytrees differ in structure, shape or dtype.

    Args:
        pytree: the pytree to check.
        like: the expected one, of arrays or `jax.ShapeDtypeStruct`.
        what: name of `pytree` in messages.
        any_float: whether leaves of floats may have any dtype of floats.

    >>> expect({"w": jnp.ones(2)}, {"w": jnp.ones(3)}, "stats")
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: stats leaf 'w' is float32 of shape (2,); expected float32 of shape (3,)
    """
    got = _described_by_path(pytree, any_float)
    expected = _described_by_path(like, any_float)
    for path in expected | got:
        ours, theirs = got.get(path, "absent"), expected.get(path, "absent")
        if ours != theirs:
            raise UsageError(f"{what} leaf '{path}' is {ours}; expected {theirs}")
    if jax.tree.structure(pytree) != jax.tree.structure(like):
        raise UsageError(
            f"{what} is {jax.tree.structure(pytree)}; expected {jax.tree.structure(like)}"
        )


def _described_by_path(pytree: Tree, any_float: bool) -> dict[str, str]:
    return {path: described(leaf, any_float) for path, leaf in tree.by_path(pytree).items()}


def described(leaf: Any, any_float: bool = False) -> str:
    """Returns dtype and shape of an array, or the type of anything else.

    >>> described(jnp.ones((2, 3))), described(jnp.ones(()), any_float=True), described("a")
    ('float32 of shape (2, 3)', 'floats of shape ()', 'a str')
    """
    try:
        dtype = jnp.result_type(leaf if hasattr(leaf, "dtype") else type(leaf))
    except TypeError:
        return f"a {type(leaf).__name__}"
    is_float = any_float and jnp.issubdtype(dtype, jnp.floating)
    return f"{'floats' if is_float else dtype} of shape {jnp.shape(leaf)}"


def floating(pytree: Tree, what: str) -> None:
    """Raises UsageError for the first leaf that is not of floats, which can be neither differentiated nor averaged.

    >>> floating({"w": jnp.ones(2)}, "params")
    """
    expect(pytree, tree.floats_like(pytree), what, any_float=True)


def stacked(
    pytree: Tree, what: str, num_clients: int | None = None, per_tensor: bool = False
) -> int:
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
    shapes = list(map(np.shape, jax.tree.leaves(pytree)))
    if num_clients is None and not shapes:
        raise UsageError(
            f"{what} has no leaf; expected a pytree of arrays stacked over clients, [K, ...]"
        )
    count = num_clients or max([1, *shapes[0][:1]])
    like = jax.tree.map(
        lambda leaf: tree.floats(count, *() if per_tensor else np.shape(leaf)[1:]), pytree
    )
    expect(pytree, like, what, any_float=True)
    return count


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
    return parameter.range.require(f"hyperparameter '{parameter.name}'", value)


def num_rows(pytree: Tree, what: str) -> int:
    """Returns the length of all leaves of a pytree of rows.

    Raises:
        UsageError: they have several lengths, or there are no rows.

    >>> num_rows((jnp.ones((4, 2)), jnp.ones(4)), "data")
    4
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(pytree)]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise UsageError(
            f"{what} must be arrays of one length, of 1 or more rows; got shapes {[*dict.fromkeys(shapes)]}"
        )
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
        raise UsageError(
            "task.loss: key needs the default None, because D_val is scored without a key; write key=None"
        )
    return key is not None


@contextlib.contextmanager
def calling(what: str, hyper: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Reports an error of a user's function as a UsageError of one line. The error stays its cause, with the traceback.

    Args:
        what: name of the function.
        hyper: the hyperparameters that it reads; a missing one lists their names.

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
        reason = f"{type(error).__name__}: {files.reason(error)}"
        if isinstance(error, KeyError) and hyper is not None:
            reason = f"there is no {error.args[0]!r}; hyper has {', '.join(sorted(hyper))} (declare others in defaults)"
        if isinstance(
            error, (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)
        ):
            reason = "its arguments are traced, without values; use jax.numpy in place of NumPy, float(...) and if"
        raise UsageError(f"{what} failed: {reason}") from error


# --- what a function reads


def dependencies(
    function: Callable[..., Mapping[str, Tree]], *arguments: Tree
) -> tuple[dict[str, tuple], Mapping[str, Tree]]:
    """Returns which leaves of the arguments each result depends on, and the results' shapes.

    A leaf that a result does not depend on has the derivative 0 everywhere. The opposite may be untrue.

    Args:
        function: arguments -> name -> result.
        arguments: arrays or shapes.

    Returns:
        Name of a result -> bools in the structure of the arguments; and name -> shapes.

    >>> results = lambda x, y: {"sum": x["a"] + y, "none": 0 * len(y)}
    >>> read, _ = dependencies(results, {"a": 1.0, "b": 2.0}, jax.numpy.ones(3))
    >>> read["sum"], read["none"]
    (({'a': True, 'b': False}, True), ({'a': False, 'b': False}, False))
    """
    # from jax's cache the second time
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    structure = jax.tree.structure(arguments)
    owners = [name for name in sorted(shapes) for _ in jax.tree.leaves(shapes[name])]

    def read_by(name: str) -> Any:
        return structure.unflatten(
            partial_eval.dce_jaxpr(closed.jaxpr, [name == owner for owner in owners])[1]
        )

    return {name: read_by(name) for name in shapes}, shapes
