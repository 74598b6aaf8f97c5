"""Which arguments a function reads, from its trace: nothing is computed or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.interpreters import partial_eval

from fedvg_jax.core.types import Tree


def reads(
    function: Callable[..., Mapping[str, Tree]], *arguments: Tree, given: str = ""
) -> tuple[dict[str, tuple], Mapping[str, Tree]]:
    """Returns which leaves of the arguments each result depends on, and the results' shapes.

    A leaf that a result does not depend on has the derivative 0 everywhere. The opposite may be untrue.

    Args:
        function: arguments -> name -> result.
        arguments: arrays or shapes.
        given: a `jax.ad_checkpoint.checkpoint_name`; what a result reads through an array of that name does not count.

    Returns:
        Name of a result -> bools in the structure of the arguments; and name -> shapes.

    >>> read, _ = reads(lambda x, y: {"sum": x["a"] + y, "none": 0 * len(y)}, {"a": 1.0, "b": 2.0}, jax.numpy.ones(3))
    >>> read["sum"], read["none"]
    (({'a': True, 'b': False}, True), ({'a': False, 'b': False}, False))
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)  # from jax's cache the second time
    known = {id(array) for eqn in closed.eqns if given and eqn.params.get("name") == given for array in eqn.invars}
    jaxpr = closed.jaxpr.replace(eqns=[eqn for eqn in closed.eqns if not known & set(map(id, eqn.outvars))])
    structure = jax.tree.structure(arguments)
    owners = [name for name in sorted(shapes) for _ in jax.tree.leaves(shapes[name])]

    def read_by(name: str) -> Any:
        return structure.unflatten(partial_eval.dce_jaxpr(jaxpr, [name == owner for owner in owners])[1])

    return {name: read_by(name) for name in shapes}, shapes
