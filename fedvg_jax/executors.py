"""How K clients are run: one client's function over the cohort. Every executor gives the same result.

`lanes(L)` runs L clients side by side by the schedule's plan: 1 is sequential, more is a vmap whose lanes move on to
the next client as they finish, so unequal clients cost nothing. `vmapped()` is one literal `jax.vmap` over the cohort.
`looped()` is a Python loop, the slow oracle of the tests.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax import tree
from fedvg_jax.types import Client, Executor, Schedule, Tree


def lanes(num_lanes: int) -> Executor:
    """L clients side by side, without padding: no masks inside, trip counts are data, nothing recompiles.

    A segment is a stretch of steps in which no lane changes client; lanes are reset and stored only between segments.
    """

    def train(client: Client, schedule: Schedule) -> Tree:
        plan, each = schedule.plan, _over(num_lanes)

        def segment(s, carry):
            live, done = carry
            k, begin = plan.client[s], plan.step[s] + schedule.start[plan.client[s]]
            live = tree.where(plan.reset[s], each(client.init)(k), live)
            live = lax.fori_loop(0, plan.length[s], lambda i, c: each(client.step)(c, k, begin + i), live)
            # an index past the end stores nothing
            return live, tree.put(done, jnp.where(plan.finish[s], k, len(schedule.clients)), live)

        untrained = jax.vmap(client.init)(jnp.arange(len(schedule.clients), dtype=jnp.int32))
        idle = each(client.init)(jnp.zeros(num_lanes, jnp.int32))
        return lax.fori_loop(0, plan.num_segments, segment, (idle, untrained))[1]

    return Executor(num_lanes, train, lambda f, xs: lax.map(f, xs, batch_size=num_lanes if num_lanes > 1 else None))


def vmapped() -> Executor:
    """All clients at once, each masked after its last step: what the other executors are tested against."""

    def train(client: Client, schedule: Schedule) -> Tree:
        def local_training(k):
            def step(t, carry):
                return tree.where(t < schedule.num_steps[k], client.step(carry, k, schedule.start[k] + t), carry)

            return lax.fori_loop(0, schedule.num_steps.max(), step, client.init(k))

        return jax.vmap(local_training)(jnp.arange(len(schedule.clients), dtype=jnp.int32))

    return Executor(1, train, lambda f, xs: jax.vmap(f)(xs))


def looped() -> Executor:
    """Python loops over clients and steps, for tests: the schedule must be concrete."""

    def train(client: Client, schedule: Schedule) -> Tree:
        def local_training(k):
            carry = client.init(k)
            for t in range(int(schedule.num_steps[k])):
                carry = client.step(carry, k, schedule.start[k] + t)
            return carry

        return _stacked([local_training(k) for k in range(len(schedule.clients))])

    def each(f, xs):
        return _stacked([f(tree.take(xs, k)) for k in range(len(jax.tree.leaves(xs)[0]))])

    return Executor(1, train, each)


def _over(num_lanes: int):
    """vmap over the lanes; a single lane is run without a batch axis, which XLA turns into plain matmuls."""
    if num_lanes > 1:
        return jax.vmap

    def single(f):
        return lambda *args: jax.tree.map(lambda x: x[None], f(*tree.take(args, 0)))

    return single


def _stacked(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)
