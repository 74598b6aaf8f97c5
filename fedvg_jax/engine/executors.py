"""Executors: ways to run the cohort's clients, all with the same result.

- `lanes(L)` runs L clients side by side by the schedule's plan. One lane is sequential. Several lanes are a vmap in
  which each lane continues with the next client as it finishes, so clients of unequal size cost no padding.
- `vmapped()` is one literal `jax.vmap` over the cohort.
- `sharded(D, L)` runs L lanes on each of D devices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from fedvg_jax.core import tree
from fedvg_jax.core.tree import LOCAL_STEPS, SEGMENTS
from fedvg_jax.core.types import Client, Executor, Plan, Schedule, SimState, Tree
from fedvg_jax.host.hardware import choices

__all__ = ["lanes", "sharded", "vmapped"]

DEVICES = "devices"
"""The axis of a mesh of `sharded`."""


def lanes(num_lanes: int, num_mapped: int | None = None) -> Executor:
    """Returns an executor of L clients side by side, without padding or masks; trip counts are data.

    Lanes load and store clients only between the segments of the plan.

    Args:
        num_lanes: L.
        num_mapped: clients that scoring computes together; None for L.
    """
    num_mapped = num_mapped or num_lanes

    def train(make_client, shared, schedule):
        return _on_lanes(make_client(shared, schedule), schedule)

    def map_entries(f, shared, xs):
        return lax.map(
            lambda x: f(shared, x), xs, batch_size=num_mapped if num_mapped > 1 else None
        )

    return Executor(num_lanes, train, map_entries, lanes_together=num_lanes)


def vmapped() -> Executor:
    """Returns an executor of all clients at once, each masked after its last step: a reference for the others."""

    def train(make_client, shared, schedule):
        client = make_client(shared, schedule)

        def local_training(k):
            def step(t, carry):
                return tree.where(
                    t < schedule.num_steps[k], client.step(carry, k, schedule.start[k] + t), carry
                )

            return lax.fori_loop(0, schedule.num_steps.max(), step, client.init(k))

        return jax.vmap(local_training)(jnp.arange(len(schedule.clients), dtype=jnp.int32))

    return Executor(1, train, lambda f, shared, xs: jax.vmap(lambda x: f(shared, x))(xs))


def sharded(
    num_devices: int,
    num_lanes: int,
    devices: Sequence[Any] | None = None,
    num_mapped: int | None = None,
) -> Executor:
    """Returns an executor of `lanes` on each of D devices; what clients share is replicated.

    Several processes have equal numbers of the devices; D is then a multiple of their number.

    If the algorithm has client states, devices exchange the cohort's before the first client. They communicate next
    after the last client. Each then holds an equal part of the cohort's results, summed over the devices, where a
    device contributes zeros for clients that it did not train. Weighted means of clients are sums of each device's,
    added up.

    Args:
        num_devices: D.
        num_lanes: L.
        devices: jax's devices; the first D are used. Defaults to the devices of this process.
        num_mapped: as in `lanes`, on each device.
    """
    mesh = Mesh(_devices_of_all_processes(num_devices, devices or jax.devices()), (DEVICES,))
    inner = lanes(num_lanes, num_mapped)
    by_device, by_lane = P(DEVICES), P(None, DEVICES)
    of_plan = Plan(P(), P(), *4 * [by_lane])
    over_devices = functools.partial(jax.shard_map, mesh=mesh, out_specs=by_device, check_vma=False)

    def train(make_client, shared, schedule):
        count = len(schedule.clients)
        # pads the cohort with clients that no lane trains
        padded = schedule._replace(clients=jnp.pad(schedule.clients, (0, -count % num_devices)))

        def train_on_device(shared, schedule):
            done = _on_lanes(make_client(shared, schedule), schedule, is_alone=False)
            return jax.tree.map(lambda x: lax.psum_scatter(x, DEVICES, tiled=True), done)

        of_schedule = jax.tree.map(lambda _: P(), schedule)._replace(plan=of_plan)
        run = over_devices(train_on_device, in_specs=(P(), of_schedule))
        done = jax.tree.map(lambda x: x[:count], run(shared, padded))
        # the initial carries of clients without steps, which are on no lane
        untrained = jax.vmap(make_client(shared, schedule).init)(jnp.arange(count, dtype=jnp.int32))
        return tree.where(schedule.num_steps == 0, untrained, done)

    def map_entries(f, shared, xs):
        count = len(jax.tree.leaves(xs)[0])
        num_repeats = -count % num_devices  # pads the entries with the last one
        xs = jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[-1:], num_repeats, 0)]), xs)
        run = over_devices(functools.partial(inner.map, f), in_specs=(P(), by_device))
        return jax.tree.map(lambda y: y[:count], run(shared, xs))

    return Executor(
        num_devices * num_lanes,
        train,
        map_entries,
        placement=NamedSharding(mesh, P()),
        lanes_together=num_lanes,
        clients=NamedSharding(mesh, by_device) if num_devices > 1 else None,
    )


# --- client states on several devices: divided among them by client, and exchanged for the cohort of a round


def placement(executor: Executor) -> Any:
    """Returns the shardings of a state, a prefix of its pytree; None for one device."""
    if executor.clients is None:
        return executor.placement
    whole = SimState(*len(SimState._fields) * [executor.placement])
    return whole._replace(clients=executor.clients)


def take_rows(states: Tree, rows: Array, sharding: NamedSharding) -> Tree:
    """Returns rows of every leaf, [K, ...], on every device.

    XLA adds up what each device has of them, and zeros for the others: devices exchange K rows, never all M.

    Args:
        states: leaves [M, ...].
        rows: int32 [K], in 0..M - 1.
        sharding: of axis M over devices.
    """
    return lax.with_sharding_constraint(tree.take(states, rows), NamedSharding(sharding.mesh, P()))


def put_rows(states: Tree, rows: Array, entries: Tree, sharding: NamedSharding) -> Tree:
    """Returns the states with `entries` at `rows`; writes past the end are dropped.

    Each device writes the rows that it holds, without communication.

    Args:
        states: leaves [M, ...].
        rows: int32 [K].
        entries: leaves [K, ...], on every device.
        sharding: of axis M over devices.
    """
    return lax.with_sharding_constraint(tree.put(states, rows, entries), sharding)


# --- lanes and devices


def _devices_of_all_processes(num_devices: int, devices: Sequence[Any]) -> list[Any]:
    """Returns the first devices of every process, equally many of each, process by process."""
    num_processes = len({device.process_index for device in devices})
    used, available = num_devices // num_processes, len(devices) // num_processes
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return [device for i, device in enumerate(ordered) if i % available < used]


def _on_lanes(client: Client, schedule: Schedule, is_alone: bool = True) -> Tree:
    """Returns the final carries of the clients on these lanes, stacked [K, ...].

    A stored client is one vector where the hardware `is_packed`; the result is the same.

    Args:
        client: how a client trains.
        schedule: of the cohort, with the plan of these lanes, which may differ from the executor's lanes.
        is_alone: whether these are all lanes of the cohort. Clients without steps then have their initial carries.
            Otherwise the carries of clients that are not on these lanes are 0.
    """
    plan, count = schedule.plan, len(schedule.clients)
    num_lanes = plan.client.shape[1]
    over_lanes = jax.vmap if num_lanes > 1 else lambda f: f
    # without a lane axis: matmuls stay plain, and XLA updates the model in place
    if num_lanes == 1:
        plan = plan._replace(
            **{name: getattr(plan, name)[:, 0] for name in ("client", "step", "reset", "finish")}
        )
    untrained = jax.eval_shape(client.init, jnp.int32(0))
    packing = tree.packing_of(untrained) if choices().is_packed else tree.UNPACKED

    def train(s, k, begin, on_lanes):
        with jax.named_scope(LOCAL_STEPS):
            return lax.fori_loop(
                0, plan.length[s], lambda i, c: over_lanes(client.step)(c, k, begin + i), on_lanes
            )

    def whole_client(s, stored):
        k = plan.client[s]
        trained = train(s, k, schedule.start[k], client.init(k))
        return tree.replaced(stored, k, packing.pack(trained))

    def segment(s, carry):
        on_lanes, stored = carry
        k, first_step = plan.client[s], plan.step[s]
        loaded = tree.where(
            first_step == 0,
            over_lanes(client.init)(k),
            over_lanes(packing.unpack)(tree.take(stored, k)),
        )
        on_lanes = tree.where(plan.reset[s], loaded, on_lanes)
        on_lanes = train(s, k, first_step + schedule.start[k], on_lanes)
        # writes to an index past the end are dropped
        places = jnp.where(plan.finish[s], k, count)
        return on_lanes, tree.put(stored, places, over_lanes(packing.pack)(on_lanes))

    if is_alone:
        empty = jax.vmap(lambda k: packing.pack(client.init(k)))(jnp.arange(count, dtype=jnp.int32))
    else:
        stored_entry = jax.eval_shape(packing.pack, untrained)
        empty = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), stored_entry)
    with jax.named_scope(SEGMENTS):
        if is_alone and num_lanes == 1:  # every segment is a whole client
            stored = lax.fori_loop(0, plan.num_segments, whole_client, empty)
        else:
            idle = over_lanes(client.init)(jnp.zeros_like(plan.client[0]))
            stored = lax.fori_loop(0, plan.num_segments, segment, (idle, empty))[1]
    return jax.vmap(packing.unpack)(stored)
