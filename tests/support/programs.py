"""Programs: their equations and primitives, runs whose programs are traced and not compiled, and compilations."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.extend import core

from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import simulation, tables
from fedvg_jax.runs.placement import pool_rows


def equations(function, *arguments) -> Iterator:
    """Every equation of the function's jaxpr, those of loops, branches and calls included."""
    return _below(jax.make_jaxpr(function)(*arguments).jaxpr)


def primitives(function, *arguments) -> set[str]:
    """Names of all primitives of a function."""
    return {equation.primitive.name for equation in equations(function, *arguments)}


def _below(jaxpr) -> Iterator:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: not isinstance(x, list | tuple)):
            if isinstance(inner, core.ClosedJaxpr):
                yield from _below(inner.jaxpr)
            elif isinstance(inner, core.Jaxpr):
                yield from _below(inner)


def trace_only(sim: simulation.Simulation, say=None) -> chunks.Programs:
    """Replaces `chunks.compile_programs` where a test is about the host: both programs are traced, and return ones.

    A round leaves the model as it is, every client is finite with weight 1, and every entry of a confusion matrix is 1.
    As a compiled program, it takes no arguments of other shapes.
    """
    rounds = schedules.stack([sim.schedule(0)], tables.MAX_ROUNDS)
    data = pool_rows.shapes(sim.host_rows, sim.data)
    first = sim.state, np.int32(1), rounds, data, sim.hyper
    _, metrics = _ones(sim.chunk, *first)
    evaluated = chunks.evaluation_tables(sim.data).values()
    variables = sim.whole(sim.state.variables)
    sums = {rows.shape: _ones(sim.evaluate, variables, sim.data.pool, rows) for rows in evaluated}

    def chunk(*arguments):
        assert jax.tree.map(np.shape, arguments) == jax.tree.map(np.shape, first)
        return arguments[0], metrics

    return chunks.Programs(chunk, lambda _variables, _pool, rows: sums[rows.shape], 0.0)


def variables_of_ones(_config, init, initial=None):
    """Replaces `registry.make_variables` where no model is trained: a draw compiles for half a second."""
    return _ones(init, jax.random.key(0))


def _ones(function, *arguments):
    """Returns arrays of ones of the shapes that a function returns."""
    return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


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
