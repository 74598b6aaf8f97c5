"""Traced programs: their equations and primitives, and runs whose programs are traced and not compiled."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.extend import core

from fedvg_jax.runs import chunks, simulation


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


def trace_only(sim: simulation.Simulation) -> chunks.Programs:
    """Replaces `chunks.compile_programs` where a test is about the host: both programs are traced, and return ones.

    A round leaves the model as it is, every client is finite with weight 1, and every entry of a confusion matrix is 1.
    """

    def chunk(state, num_rounds, rounds, data, hyper):
        _, metrics = jax.eval_shape(sim.chunk, state, num_rounds, rounds, data, hyper)
        return state, jax.tree.map(lambda shape: np.ones(shape.shape, shape.dtype), metrics)

    def evaluate(*arguments):
        return jax.tree.map(lambda shape: np.ones(shape.shape, shape.dtype), jax.eval_shape(sim.evaluate, *arguments))

    return chunks.Programs(chunk, evaluate, 0.0)
