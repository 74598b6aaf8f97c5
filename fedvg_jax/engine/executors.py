"""How K clients are run: one client's function over the cohort. Every executor gives the same result.

`lanes(L)` runs L clients side by side by the schedule's plan: 1 is sequential, more is a vmap whose lanes move on to
the next client as they finish, so unequal clients cost nothing. `vmapped()` is one literal `jax.vmap` over the cohort.
`sharded(D, L)` gives every device L lanes of its own and its share of the equal jobs. `looped()` is a Python loop, the
slow oracle of the tests.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedvg_jax.core import tree
from fedvg_jax.core.types import Client, Executor, MakeClient, Plan, Schedule, Tree


def lanes(num_lanes: int) -> Executor:
    """L clients side by side, without padding: no masks inside, trip counts are data, nothing recompiles.

    A segment is a stretch of steps in which no lane changes client; lanes are loaded and stored only between segments.
    """

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        client = make_client(shared, schedule)
        return _or_untrained(_on_lanes(num_lanes, client, schedule), client, schedule)

    def each_alone(f, shared: Tree, xs: Tree) -> Tree:
        return lax.map(lambda x: f(shared, x), xs, batch_size=num_lanes if num_lanes > 1 else None)

    return Executor(num_lanes, train, each_alone, lanes_together=num_lanes)


def vmapped() -> Executor:
    """All clients at once, each masked after its last step: what the other executors are tested against."""

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        client = make_client(shared, schedule)

        def local_training(k):
            def step(t, carry):
                return tree.where(t < schedule.num_steps[k], client.step(carry, k, schedule.start[k] + t), carry)

            return lax.fori_loop(0, schedule.num_steps.max(), step, client.init(k))

        return jax.vmap(local_training)(jnp.arange(len(schedule.clients), dtype=jnp.int32))

    return Executor(1, train, lambda f, shared, xs: jax.vmap(lambda x: f(shared, x))(xs))


def sharded(num_devices: int, num_lanes: int) -> Executor:
    """`lanes` on each of D devices; what clients share is replicated.

    Devices do not meet until the last client is done. Each then keeps an equal share of the cohort, added up from what
    all have trained, 0 for others' clients.
    """
    mesh = Mesh(jax.devices()[:num_devices], ("devices",))
    inner, jobs = lanes(num_lanes), P("devices")
    plan_by_lane = Plan(P(), P(), *4 * [P(None, "devices")])
    by_lane = Schedule(*len(Schedule._fields) * [P()])._replace(plan=plan_by_lane)

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        count = len(schedule.clients)
        spare = -count % num_devices  # where they do not divide, clients whom nobody trains
        padded = schedule._replace(clients=jnp.pad(schedule.clients, (0, spare)))

        def on_one(shared, schedule: Schedule) -> Tree:
            done = _on_lanes(num_lanes, make_client(shared, schedule), schedule)
            return jax.tree.map(lambda x: lax.psum_scatter(x, "devices", tiled=True), done)

        run = jax.shard_map(on_one, mesh=mesh, in_specs=(P(), by_lane), out_specs=jobs, check_vma=False)
        done = jax.tree.map(lambda x: x[:count], run(shared, padded))
        return _or_untrained(done, make_client(shared, schedule), schedule)

    def each(f, shared: Tree, xs: Tree) -> Tree:
        def on_one(shared, xs):
            return inner.map(f, shared, xs)

        count = len(jax.tree.leaves(xs)[0])
        spare = -count % num_devices  # where they do not divide, the last job again
        xs = jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], spare, 0)]), xs)
        run = jax.shard_map(on_one, mesh=mesh, in_specs=(P(), jobs), out_specs=jobs, check_vma=False)
        return jax.tree.map(lambda y: y[:count], run(shared, xs))

    placement = NamedSharding(mesh, P())
    return Executor(num_devices * num_lanes, train, each, placement, lanes_together=num_lanes)


def looped() -> Executor:
    """Python loops over clients and steps, for tests: the schedule must be concrete."""

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        client = make_client(shared, schedule)

        def local_training(k):
            carry = client.init(k)
            for t in range(int(schedule.num_steps[k])):
                carry = client.step(carry, k, schedule.start[k] + t)
            return carry

        return _stacked([local_training(k) for k in range(len(schedule.clients))])

    def each(f, shared: Tree, xs: Tree) -> Tree:
        return _stacked([f(shared, tree.take(xs, k)) for k in range(len(jax.tree.leaves(xs)[0]))])

    return Executor(1, train, each)


def _on_lanes(num_lanes: int, client: Client, schedule: Schedule) -> Tree:
    """Final carries of the clients on these lanes, stacked [K, ...], 0 for all others."""
    plan, each = schedule.plan, jax.vmap if num_lanes > 1 else lambda f: f
    if num_lanes == 1:  # without a lane axis: matmuls stay plain, and XLA updates the model in place
        plan = plan._replace(**{name: getattr(plan, name)[:, 0] for name in ("client", "step", "reset", "finish")})

    def segment(s, carry):
        live, done = carry
        k, first = plan.client[s], plan.step[s]
        begun = tree.where(first == 0, each(client.init)(k), tree.take(done, k))
        live = tree.where(plan.reset[s], begun, live)
        begin = first + schedule.start[k]
        live = lax.fori_loop(0, plan.length[s], lambda i, c: each(client.step)(c, k, begin + i), live)
        # an index past the end stores nothing
        return live, tree.put(done, jnp.where(plan.finish[s], k, len(schedule.clients)), live)

    idle = each(client.init)(jnp.zeros_like(plan.client[0]))
    nothing = tree.zeros_like(jax.eval_shape(lambda: _untrained(client, schedule)))
    return lax.fori_loop(0, plan.num_segments, segment, (idle, nothing))[1]


def _untrained(client: Client, schedule: Schedule) -> Tree:
    """The carries with which clients begin, stacked [K, ...]."""
    return jax.vmap(client.init)(jnp.arange(len(schedule.clients), dtype=jnp.int32))


def _or_untrained(done: Tree, client: Client, schedule: Schedule) -> Tree:
    """The carries, those of clients without steps as they begin."""
    return tree.where(schedule.num_steps == 0, _untrained(client, schedule), done)


def _stacked(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)
