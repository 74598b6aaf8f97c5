"""Rounds to differentiate through: loops of static length, rematerialised, over as many steps and rounds as wanted.

`unrolled` is an executor like any other, so the round it runs is `round.make_round`'s own, of the same algorithms and
weightings, and equals the fast one. `over_rounds` scans such a round; `hypergradient` differentiates what comes of it.

    rounds = over_rounds(make_round(task, algorithm, weighting, unrolled(most_steps(planned)), local.sgd, N))
    value, slopes = hypergradient(lambda hyper: loss(rounds(state, stack(planned), data, hyper)), hyper, ["lr", "eps"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Data,
    Executor,
    Hyper,
    MakeClient,
    Metrics,
    RoundStep,
    Schedule,
    SimState,
    Tree,
    UsageError,
)

Rounds = Callable[[SimState, Schedule, Data, Hyper], tuple[SimState, Metrics]]
"""(state, schedules stacked [R], data, hyper) -> (state, metrics [R, K])"""


def unrolled(
    num_steps: int, *, epochs: int = 1, horizon: int | None = None, remat: bool = True, num_lanes: int = 1
) -> Executor:
    """Clients in loops of static length, which have slopes in reverse mode too.

    A client ends with the loop: the steps before its first are skipped. On one lane they cost nothing, on more they are
    computed and masked. A client with more than `num_steps` minibatches comes back as NaN, hence as diverged: under
    jit nothing else can be said.

    Args:
        num_steps: most minibatches of a client in a round, of training or of a probe; see `most_steps`.
        epochs: stretches the loop is cut into. With `remat`, one stretch's residuals are held at a time, and the
            clients' models at the beginning of each.
        horizon: a client's last steps that gradients pass through; by default all. What came before is as constant,
            for a client that took more also the model it began with.
        remat: whether residuals are computed again when they are needed (`jax.checkpoint`), or kept.
        num_lanes: clients side by side.

    Raises:
        UsageError: for a number that cannot be.

    >>> loop = unrolled(4).loop
    >>> slope = jax.grad(lambda x: loop(jnp.int32(3), lambda i, y: x * y, 1.0))
    >>> float(slope(2.0))  # of x^3
    12.0
    """
    _check_numbers(num_steps=num_steps, epochs=epochs, num_lanes=num_lanes)
    passed = num_steps if horizon is None else min(_check_numbers(horizon=horizon), num_steps)

    def loop(count: Array, body: Callable[[Array, Tree], Tree], carry: Tree) -> Tree:
        return _fits(count, num_steps, _masked(num_steps - count, body, carry, np.arange(num_steps), epochs, remat))

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        client = make_client(shared, schedule)

        def local_training(k: Array) -> Tree:
            def step(i: Array, carry: Tree) -> Tree:
                return client.step(carry, k, schedule.start[k] + i)

            count, times, carry = schedule.num_steps[k], np.arange(num_steps), client.init(k)
            idle = num_steps - count
            if passed < num_steps:
                early = lax.stop_gradient(_masked(idle, step, carry, times[:-passed], 1, False))
                carry = tree.where(count > passed, early, carry)
            carry = _masked(idle, step, carry, times[-passed:], epochs, remat)
            return _fits(count, num_steps, carry)

        ids = jnp.arange(len(schedule.clients), dtype=jnp.int32)
        return each(lambda _, k: local_training(k), (), ids)

    def each(f: Callable, shared: Tree, xs: Tree) -> Tree:
        return lax.map(lambda x: f(shared, x), xs, batch_size=num_lanes if num_lanes > 1 else None)

    return Executor(num_lanes, train, each, loop=loop)


def over_rounds(round_step: RoundStep, *, horizon: int | None = None, remat: bool = True) -> Rounds:
    """A scan of rounds: (state, schedules stacked [R], data, hyper) -> (state, metrics [R, K]).

    Args:
        round_step: from `round.make_round`. Reverse mode needs an `unrolled` executor in it; forward mode takes any.
        horizon: last rounds that gradients pass through; by default all. The state before them is as constant.
        remat: whether only the states between rounds are held, and a round is computed again when its residuals are
            needed.

    >>> def halve(state, schedule, data, hyper):
    ...     return state * hyper["by"], state
    >>> rounds = over_rounds(halve)
    >>> rounds(jnp.float32(8), Schedule(*[np.zeros(3, np.float32)] * 10), None, {"by": jnp.float32(0.5)})
    (Array(1., dtype=float32), Array([8., 4., 2.], dtype=float32))
    """
    step = jax.checkpoint(round_step, prevent_cse=False) if remat else round_step
    if horizon is not None:
        _check_numbers(horizon=horizon)

    def rounds(state: SimState, schedules: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        def through(step: RoundStep, state: SimState, part: slice) -> tuple[SimState, Metrics]:
            taken = jax.tree.map(lambda leaf: leaf[part], schedules)
            return lax.scan(lambda state, schedule: step(state, schedule, data, hyper), state, taken)

        if horizon is None or horizon >= len(schedules.clients):
            return through(step, state, slice(None))
        state, first = lax.stop_gradient(through(round_step, state, slice(-horizon)))
        state, last = through(step, state, slice(-horizon, None))
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), first, last)

    return rounds


def hypergradient(
    objective: Callable[[Hyper], Array],
    hyper: Hyper,
    names: Sequence[str],
    *,
    mode: Literal["reverse", "forward"] = "reverse",
) -> tuple[Array, Hyper]:
    """The objective and its slopes with respect to some hyper-parameters, name -> like `hyper[name]`.

    Forward mode carries one tangent per number along: its memory does not grow with steps or rounds, its time does
    with numbers, and it passes through every executor, the fast ones too. Reverse mode is for many numbers.

    Raises:
        UsageError: for a name that `hyper` has not.

    >>> value, slopes = hypergradient(lambda hyper: hyper["a"] ** 2 * hyper["b"], {"a": 3.0, "b": 2.0}, ["a"])
    >>> float(value), float(slopes["a"])
    (18.0, 12.0)
    """
    for name in names:
        if name not in hyper:
            raise UsageError(f"no hyper-parameter '{name}' to differentiate; there are {', '.join(sorted(hyper))}")
    if mode not in ("reverse", "forward"):
        raise UsageError(f"mode must be reverse or forward; got {mode}")
    chosen = {name: jnp.asarray(hyper[name]) for name in names}

    def of(chosen: Hyper) -> Array:
        return objective({**hyper, **chosen})

    if mode == "reverse":
        return jax.value_and_grad(of)(chosen)
    flat, restore = ravel_pytree(chosen)

    def along(direction: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda x: of(restore(x)), (flat,), (direction,))

    value, slopes = jax.vmap(along, out_axes=(None, 0))(jnp.eye(flat.size, dtype=flat.dtype))
    return value, restore(slopes)


def stack(schedules: Sequence[Schedule]) -> Schedule:
    """Schedules of rounds, one leading axis [R] on every leaf; tables of minibatches end with the longest round.

    Raises:
        UsageError: without any.

    >>> from fedvg_jax.engine import schedule
    >>> one = schedule.pack(np.arange(1), [np.zeros((2, 4), np.int32)], [8], num_lanes=1, capacity=9)
    >>> stack([one, one, one]).rows.shape  # rounds, minibatches, rows
    (3, 2, 4)
    """
    if not schedules:
        raise UsageError("no round to stack; give at least one schedule")
    most = max(1, *(int(s.num_steps.sum() + s.probe_steps.sum()) for s in schedules))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(s._replace(rows=s.rows[:most]) for s in schedules))


def most_steps(schedules: Sequence[Schedule]) -> int:
    """Most minibatches of a client in any of the rounds, of training or of a probe: what `unrolled` needs to know.

    >>> from fedvg_jax.engine import schedule
    >>> batches = [np.zeros((2, 4), np.int32), np.zeros((5, 4), np.int32)]
    >>> most_steps([schedule.pack(np.arange(2), batches, [8, 20], num_lanes=1, capacity=9)])
    5
    """
    return max(1, *(int(max(s.num_steps.max(), s.probe_steps.max())) for s in schedules))


def _masked(idle: Array, body: Callable, carry: Tree, times: np.ndarray, parts: int, remat: bool) -> Tree:
    """carry <- body(t - idle, carry) for the t of `times` from `idle` on, in equal parts and a shorter last one."""

    def step(carry: Tree, t: Array) -> tuple[Tree, None]:
        return lax.cond(t >= idle, lambda c: body(t - idle, c), lambda c: c, carry), None

    def part(carry: Tree, times: Array) -> tuple[Tree, None]:
        return lax.scan(step, carry, times)

    length = -(-len(times) // parts)
    spare = -len(times) % length
    # times before the first are idle whatever the client
    table = np.concatenate([np.full(spare, -1), times]).reshape(-1, length).astype(np.int32)
    held = jax.checkpoint(part, prevent_cse=False) if remat else part
    return lax.scan(held, carry, jnp.asarray(table))[0]


def _fits(count: Array, most: int, carry: Tree) -> Tree:
    """`carry`, or NaN where the loop was too short for it."""

    def checked(leaf: Array) -> Array:
        return jnp.where(count <= most, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    return jax.tree.map(lambda leaf: checked(jnp.asarray(leaf)), carry)


def _check_numbers(**numbers: int) -> int:
    for name, number in numbers.items():
        if number < 1:
            raise UsageError(f"{name} must be >= 1; got {number}")
    return number
