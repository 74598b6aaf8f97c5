"""Programs: their equations and primitives, and compilations."""

import contextlib
from collections.abc import Iterator

import jax
from jax.extend import core


def equations(function, *arguments) -> Iterator:
    """Every equation of the function's jaxpr, those of loops, branches and calls included."""
    return _below(jax.make_jaxpr(function)(*arguments).jaxpr)


def primitives(function, *arguments) -> set[str]:
    """Names of all primitives of a function."""
    return {equation.primitive.name for equation in equations(function, *arguments)}


def _below(jaxpr) -> Iterator:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: not isinstance(x, list | tuple)
        ):
            if isinstance(inner, core.ClosedJaxpr):
                yield from _below(inner.jaxpr)
            elif isinstance(inner, core.Jaxpr):
                yield from _below(inner)


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list of the names of programs, which grows as they are compiled or fetched from the cache."""
    names = []

    def listen(event, duration, fun_name="", **_):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax._src.monitoring.unregister_event_duration_listener(listen)
