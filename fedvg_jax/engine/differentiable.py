"""Rounds that reverse mode can differentiate: loops of static length, with rematerialisation.

`unrolled` is an executor, so the round that it runs is `make_round`'s, with the same algorithms and weightings
and the same result. `over_rounds` scans such a round; `hypergradient` differentiates a function of the result.

    step = make_round(task, algorithm, weighting, unrolled(max_steps(schedules)), sgd, N)
    rounds, plan = over_rounds(step), stack_schedules(schedules)
    value, gradients = hypergradient(lambda h: loss(rounds(state, plan, data, h)), hyper, ["lr", "fedvg.eps"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedvg_jax.core import types
from fedvg_jax.core.types import (
    Data,
    Executor,
    Hyper,
    Metrics,
    RoundStep,
    Schedule,
    SimState,
    Tree,
    UsageError,
)
from fedvg_jax.engine.schedule import num_minibatches

Rounds = Callable[[SimState, Schedule, Data, Hyper], tuple[SimState, Metrics]]
"""(state, schedules stacked [R], data, hyper) -> (state, metrics [R, K])"""


def unrolled(num_steps: int, *, epochs: int = 1, remat: bool = True) -> Executor:
    """Returns an executor with loops of static length, so that reverse mode differentiates them too.

    Clients train one after another. A client's last step is the last iteration; the iterations before its first step
    are skipped. A client with more than `num_steps` minibatches returns NaN and
    counts as diverged, because a program under jit cannot raise an error.

    Args:
        num_steps: most minibatches of a client in a round, of training or of a probe; see `max_steps`.
        epochs: parts into which the loop is split. With `remat`, memory holds the residuals of one part at a time, and
            the clients' models at the beginning of each part.
        remat: whether residuals are recomputed when they are needed (`jax.checkpoint`), or kept.

    >>> loop = unrolled(4).loop
    >>> derivative = jax.grad(lambda x: loop(jnp.int32(3), lambda i, y: x * y, 1.0))
    >>> float(derivative(2.0))  # of x^3
    12.0
    """
    length = -(-num_steps // epochs)
    # numbers below 0 pad the first part; every client skips them
    numbers = np.arange(-(-num_steps % length), num_steps, dtype=np.int32).reshape(-1, length)

    def loop(count, body, carry):
        def step(carry, number):
            i = number - (num_steps - count)
            return lax.cond(i >= 0, lambda c: body(i, c), lambda c: c, carry), None

        def part(carry, numbers):
            return lax.scan(step, carry, numbers)

        scanned = jax.checkpoint(part, prevent_cse=False) if remat else part
        carry, _ = lax.scan(scanned, carry, jnp.asarray(numbers))
        return _nan_unless_fits(count, num_steps, carry)

    def train(make_client, shared, schedule):
        client = make_client(shared, schedule)

        def local_training(k):
            def step(i, carry):
                return client.step(carry, k, schedule.start[k] + i)

            return loop(schedule.num_steps[k], step, client.init(k))

        return lax.map(local_training, jnp.arange(len(schedule.clients), dtype=jnp.int32))

    def map_entries(f, shared, xs):
        return lax.map(lambda x: f(shared, x), xs)

    return Executor(1, train, map_entries, loop=loop)


def over_rounds(round_step: RoundStep, *, remat: bool = True) -> Rounds:
    """Returns a scan of rounds: (state, schedules stacked [R], data, hyper) -> (state, metrics [R, K]).

    Args:
        round_step: from `make_round`. Reverse mode needs an `unrolled` executor in it; forward mode takes any.
        remat: whether memory holds only the states between rounds, and each round is recomputed when its residuals are
            needed.

    >>> def halve(state, schedule, data, hyper):
    ...     return state * hyper["by"], state
    >>> rounds = over_rounds(halve)
    >>> rounds(jnp.float32(8), Schedule(*[np.zeros(3, np.float32)] * 10), None, {"by": jnp.float32(0.5)})
    (Array(1., dtype=float32), Array([8., 4., 2.], dtype=float32))
    """
    step = jax.checkpoint(round_step, prevent_cse=False) if remat else round_step

    def rounds(state, schedules, data, hyper):
        return lax.scan(
            lambda state, schedule: step(state, schedule, data, hyper), state, schedules
        )

    return rounds


def hypergradient(
    objective: Callable[[Hyper], Array],
    hyper: Hyper,
    names: Sequence[str],
    *,
    mode: Literal["reverse", "forward"] = "reverse",
) -> tuple[Array, Hyper]:
    """Returns an objective and its gradient with respect to some hyperparameters.

    Forward mode carries one tangent per scalar: its memory is independent of steps and rounds, its time grows with the
    number of scalars, and it works with every executor. Reverse mode suits many scalars.

    Args:
        objective: hyper -> scalar [].
        hyper: name -> value. Integers to differentiate become floats.
        names: of the hyperparameters to differentiate.
        mode: reverse or forward.

    Returns:
        The objective []; and name -> gradient, of the shape of `hyper[name]`.

    Raises:
        UsageError: for a name that is not in `hyper`; or reverse mode meets an executor without it.

    >>> value, gradient = hypergradient(lambda hyper: hyper["a"] ** 2 * hyper["b"], {"a": 3.0, "b": 2.0}, ["a"])
    >>> float(value), float(gradient["a"])
    (18.0, 12.0)
    """
    values = {name: types.named(hyper, name, "hyperparameter") for name in names}
    chosen = jax.tree.map(_as_float, values)

    def objective_of(chosen: Hyper) -> Array:
        return objective({**hyper, **chosen})

    if mode == "reverse":
        try:
            return jax.value_and_grad(objective_of)(chosen)
        except ValueError as error:
            if "Reverse-mode differentiation does not work" not in str(error):
                raise
            raise UsageError(
                "this executor has no reverse mode; use fedvg_jax.unrolled, or mode='forward'"
            ) from error
    gradient, value = jax.jacfwd(lambda at: 2 * (objective_of(at),), has_aux=True)(chosen)
    return value, gradient


def _as_float(number: Any) -> Array:
    """Returns a number, or an array of numbers, as floats; floats keep their dtype."""
    return jnp.asarray(
        number, None if jnp.issubdtype(jnp.result_type(number), jnp.floating) else float
    )


def stack_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Returns the schedules of several rounds as one with a leading axis [R], for `over_rounds`.

    Tables of minibatches are as long as the table of the longest round.

    Raises:
        UsageError: for schedules of other shapes.

    >>> import fedvg_jax as fv
    >>> schedule = fv.make_schedule(0, [np.arange(4), np.arange(4, 8)], batch_size=2)
    >>> stack_schedules([schedule, schedule, schedule]).rows.shape  # rounds, minibatches, rows
    (3, 4, 2)
    """
    most = max(1, *map(num_minibatches, schedules))
    try:
        return jax.tree.map(
            lambda *leaves: np.stack(leaves), *(s._replace(rows=s.rows[:most]) for s in schedules)
        )
    except ValueError:
        raise UsageError(
            "schedules to stack must have equal cohort sizes, batch sizes and executors; these differ"
        ) from None


def max_steps(schedules: Sequence[Schedule]) -> int:
    """Returns the most minibatches of a client in any of the rounds, the length that `unrolled` needs.

    >>> import fedvg_jax as fv
    >>> max_steps([fv.make_schedule(0, [np.arange(4), np.arange(4, 12)], batch_size=2)])
    4
    """
    return max(1, *(int(max(s.num_steps.max(), s.probe_steps.max())) for s in schedules))


def _nan_unless_fits(count: Array, most: int, carry: Tree) -> Tree:
    """Returns `carry`, or NaN in its floats if the loop of `most` iterations was too short for `count` steps."""

    def checked(leaf: Array) -> Array:
        is_float = jnp.issubdtype(leaf.dtype, jnp.inexact)
        return jnp.where(count <= most, leaf, jnp.nan) if is_float else leaf

    return jax.tree.map(lambda leaf: checked(jnp.asarray(leaf)), carry)
