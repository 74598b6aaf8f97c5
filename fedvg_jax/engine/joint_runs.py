"""Rounds of several runs as one program: (run, client) pairs are jobs for the executor's lanes.

A `jax.vmap` of a round over its runs would batch loops whose trip counts are data: every run would compute the steps of
the longest one, with a select per step. The executor has all those loops. `pooled` gives it a batching rule of its own:
for P runs of K clients it trains P K jobs by one plan, and maps over P K entries. What remains of a round, such as
weights, means and residuals, has no loop over data, and `vmap` batches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from fedvg_jax.core.types import Client, Data, Executor, MakeClient, RoundStep, Schedule, Task, Tree, Variables
from fedvg_jax.engine import evaluate, lane_plan
from fedvg_jax.engine import schedule as schedules

BY_CLIENT = ("clients", "num_samples", "num_steps", "start", "probe_steps", "heard", "shuffle", "memory_rows")
"""Fields of a schedule with an entry per client, [P, K] of several runs."""

_AXES: dict[str, Any] = {**dict.fromkeys(Schedule._fields, 0), "plan": None, "rows": None}
SCHEDULE_AXES = Schedule(**_AXES)
"""Runs share the plan of the lanes and the table of minibatches."""

DATA_AXES = Data(None, 0, 0, 0, 0)
"""Runs share the pool; each has its own tables of rows."""


def joint_round(round_step: RoundStep) -> RoundStep:
    """Returns the round of P runs.

    Args:
        round_step: of one run, with a `pooled` executor.

    Returns:
        A function of (state, schedule, data, hyper) like `round_step`. Leaves have a leading axis [P], except the
        schedule's plan and rows (see `join_schedules`) and the data's pool.
    """
    return jax.vmap(round_step, in_axes=(0, SCHEDULE_AXES, DATA_AXES, 0))


def joint_evaluate(
    task: Task, executor: Executor, *, is_detailed: bool = False
) -> Callable[[Variables, Tree, Array], Tree]:
    """Returns evaluate(variables [P, ...], pool, rows [P, V, B]) -> results of `make_evaluate` [P, ...], run by run."""
    of_run = evaluate.make_evaluate(task, is_detailed=is_detailed)

    def evaluate_runs(variables: Variables, pool: Tree, rows: Array) -> Tree:
        return executor.map(lambda pool, run: of_run(run[0], pool, run[1]), pool, (variables, rows))

    return evaluate_runs


def pooled(executor: Executor) -> Executor:
    """Returns the executor with a batching rule over runs, by which its lanes run the clients of all of them.

    Axis K is then within a run and not divided among devices.
    """

    def train(make_client: MakeClient, shared: Tree, schedule: Schedule) -> Tree:
        @custom_vmap
        def train_run(shared: Tree, schedule: Schedule) -> Tree:
            return executor.train(make_client, shared, schedule)

        @train_run.def_vmap
        def train_runs(num_runs: int, is_batched: tuple[Tree, Tree], shared: Tree, schedule: Schedule):
            num_clients = schedule.clients.shape[1]

            def of_jobs(field: Array) -> Array:  # [P, K], or [K] where all runs have the same
                return jnp.broadcast_to(field, (num_runs, num_clients)).reshape(-1)

            jobs = schedule._replace(**{name: of_jobs(getattr(schedule, name)) for name in _by_client(schedule)})

            def make_job(shared: Tree, jobs: Schedule) -> Client:
                return _job(make_client, shared, is_batched[0], jobs, num_runs, num_clients)

            return _by_run(executor.train(make_job, shared, jobs), num_runs)

        return train_run(shared, schedule)

    def map_entries(f: Callable[[Tree, Tree], Tree], shared: Tree, xs: Tree) -> Tree:
        @custom_vmap
        def map_run(shared: Tree, xs: Tree) -> Tree:
            return executor.map(f, shared, xs)

        @map_run.def_vmap
        def map_runs(num_runs: int, is_batched: tuple[Tree, Tree], shared: Tree, xs: Tree):
            xs = jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x, (num_runs, *x.shape)), xs, is_batched[1])
            size = jax.tree.leaves(xs)[0].shape[1]
            entries = jax.tree.map(lambda x: x.reshape(num_runs * size, *x.shape[2:]), xs)
            runs = jnp.repeat(jnp.arange(num_runs, dtype=jnp.int32), size)

            def of_entry(shared: Tree, entry: tuple[Array, Tree]) -> Tree:
                return f(_of_run(shared, is_batched[0], entry[0]), entry[1])

            return _by_run(executor.map(of_entry, shared, (runs, entries)), num_runs)

        return map_run(shared, xs)

    return executor._replace(train=train, map=map_entries, clients=None, map_by_rows=None)


def _job(
    make_client: MakeClient, shared: Tree, is_batched: Tree, jobs: Schedule, num_runs: int, num_clients: int
) -> Client:
    """Returns the local training of job p K + k, which is client k of run p.

    Args:
        make_client: of one run.
        shared: what the clients of a run share; batched leaves [P, ...].
        is_batched: a bool for each leaf of `shared`.
        jobs: a schedule whose fields by client are [P K], or longer where the executor has padded them.
        num_runs: P.
        num_clients: K.
    """
    count = num_runs * num_clients
    fields = {name: getattr(jobs, name)[:count].reshape(num_runs, num_clients) for name in _by_client(jobs)}

    def client_of(job: Array) -> tuple[Client, Array]:
        run, k = job // num_clients, job % num_clients
        own = jobs._replace(**{name: field[run] for name, field in fields.items()}, key=jobs.key[run])
        return make_client(_of_run(shared, is_batched, run), own), k

    def init(job: Array) -> Tree:
        client, k = client_of(job)
        return client.init(k)

    def step(carry: Tree, job: Array, minibatch: Array) -> Tree:
        client, k = client_of(job)
        return client.step(carry, k, minibatch)

    return Client(init, step)


def _by_client(schedule: Schedule) -> list[str]:
    """Returns those of `BY_CLIENT` that the schedule has."""
    return [name for name in BY_CLIENT if getattr(schedule, name) is not None]


def _of_run(tree: Tree, is_batched: Tree, run: Array) -> Tree:
    """Returns one run's entry of every batched leaf."""
    return jax.tree.map(lambda x, batched: x[run] if batched else x, tree, is_batched)


def _by_run(tree: Tree, num_runs: int) -> tuple[Tree, Tree]:
    """Returns leaves [P K, ...] as [P, K, ...], all of them batched."""
    split = jax.tree.map(lambda x: x.reshape(num_runs, -1, *x.shape[1:]), tree)
    return split, jax.tree.map(lambda _: True, split)


def join_schedules(schedules_of_runs: Sequence[Schedule], executor: Executor) -> Schedule:
    """Returns the schedules of one round of P runs as one: fields by client [P, K], one plan and one table of rows.

    >>> from fedvg_jax.engine import executors
    >>> batches = [np.array([[0], [1]]), np.array([[2]])]
    >>> run = schedules.pack(np.array([5, 7]), batches, [2, 1], num_lanes=1, capacity=8)
    >>> joint = join_schedules([run, run], executors.lanes(1))
    >>> joint.start.tolist(), joint.rows.ravel().tolist(), joint.plan.num_segments.tolist()
    ([[0, 2], [3, 5]], [0, 1, 2, 0, 1, 2], 4)
    """
    used = [schedules.num_minibatches(s) for s in schedules_of_runs]
    offsets = (np.cumsum(used) - used).astype(np.int32)
    names = (*_by_client(schedules_of_runs[0]), "key")
    fields = {name: np.stack([getattr(s, name) for s in schedules_of_runs]) for name in names}
    fields["start"] += offsets[:, None]
    rows = np.concatenate([s.rows[:n] for s, n in zip(schedules_of_runs, used, strict=True)])
    steps, lanes = fields["num_steps"].reshape(-1), (executor.num_lanes, executor.lanes_together)
    plan = lane_plan.plan_lanes(steps, *lanes, executor.by_position)
    return Schedule(**fields, plan=plan, rows=rows)


def idle_schedule(schedule: Schedule) -> Schedule:
    """Returns the schedule with clients that take no step and drop out, so that a run of it changes nothing."""
    zero = np.zeros_like(schedule.num_steps)
    return schedule._replace(num_samples=zero, num_steps=zero, start=zero, probe_steps=zero, heard=zero.astype(bool))
