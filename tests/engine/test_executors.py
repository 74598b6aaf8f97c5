"""Every executor gives what a Python loop gives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import worlds

from fedvg_jax.config import Config
from fedvg_jax.core import groups, hardware, norms
from fedvg_jax.core.types import Client, UsageError
from fedvg_jax.engine import differentiable, executors
from fedvg_jax.engine import federated_round as round
from fedvg_jax.runs import simulation
from fedvg_jax.weightings import basic, signals
from fedvg_jax.weightings.fedvg import fedvg

WORLD = worlds.ragged()
K = WORLD.cohort_size
SHARDED = {f"{d} devices, {n} lanes": executors.sharded(d, n) for d, n in ((2, 1), (4, 2))}
EXECUTORS = (
    {f"lanes {n}": executors.lanes(n) for n in (1, 2, 3, K)}
    | {"vmapped": executors.vmapped(), "unrolled": differentiable.unrolled(WORLD.most_steps(), epochs=3)}
    | SHARDED
)
ROUNDS = 3


def with_momentum(hyper, round):
    """An optimiser with a memory, which no client may inherit."""
    return optax.sgd(hyper["lr"], momentum=0.5)


def make_round(executor, task, signal):
    rule = basic.mix(basic.samples(), fedvg(signal, groups.layerwise, task.block_of))
    return round.make_round(task, worlds.full_algorithm(), rule, executor, with_momentum, len(WORLD.train))


def schedule_of(number, executor):
    """A third of the rows are probed; in the second round some clients drop out."""
    changes = {"probe_ratio": 0.3, "dropout": 0.3 * (number == 1), "lanes_together": executor.lanes_together}
    return WORLD.schedule(number, executor.num_lanes, **changes)


def after(round_step, num_rounds, executor):
    """State and metrics of every round from the same start."""
    state, data, hyper = worlds.state(WORLD, worlds.full_algorithm()), WORLD.data(), worlds.hyper()
    results = []
    for number in range(num_rounds):
        schedule = jax.tree.map(jnp.asarray, schedule_of(number, executor))
        state, metrics = round_step(state, schedule, data, hyper)
        results.append((state, metrics))
    return jax.tree.map(np.asarray, results)


@functools.cache
def looped(dtype, num_rounds):
    """The reference, op by op; only a step, one loss and one signal are compiled, so that it ends today."""
    task = worlds.TASK._replace(loss=jax.jit(worlds.TASK.loss, static_argnums=4))
    signal = worlds.jit(signals.validation_norms(worlds.TASK, norms.l1, train=True, groups_per_pass=1))
    loop = executors.looped()

    def train(make_client, shared, schedule):
        def compiled(shared, schedule):
            client = make_client(shared, schedule)
            return client._replace(step=worlds.jit(client.step))

        return loop.train(compiled, shared, schedule)

    return after(make_round(loop._replace(train=train), task, signal), num_rounds, loop)


def assert_equals_looped(name, dtype, num_rounds, tolerance):
    executor = EXECUTORS[name]
    signal = signals.validation_norms(worlds.TASK, norms.l1, train=True, groups_per_pass=1)
    step = worlds.jit(make_round(executor, worlds.TASK, signal))
    found = after(step, num_rounds, executor)
    assert found[0][0].variables.params["fc1"]["kernel"].dtype == dtype
    worlds.assert_close(found, looped(dtype, num_rounds), tolerance)


@pytest.mark.parametrize("name", EXECUTORS)
def test_three_rounds_of_ragged_clients_equal_the_loop(x64, name):
    assert_equals_looped(name, np.float64, ROUNDS, 1e-9)


@pytest.mark.parametrize("name", ["lanes 3", "vmapped"])
def test_a_round_in_single_precision_equals_the_loop(name):
    assert_equals_looped(name, np.float32, 1, 1e-5)


COUNTER = Client(
    init=lambda k: (k, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
    step=lambda carry, k, minibatch: (k, carry[1] + 1, carry[2] * 3 + minibatch),
)
"""Counts its steps, and digests which minibatches it saw in which order."""


@pytest.mark.parametrize("num_lanes", [1, 3, K, K + 4])
@pytest.mark.parametrize("sizes", [[1] * K, [200, *[1] * (K - 1)], [0] * (K - 1) + [40], [48] * K])
def test_lanes_without_work_and_clients_without_steps_change_nothing(num_lanes, sizes):
    world = worlds.world(sizes, batch_size=16, cohort_size=K, local_epochs=1)
    executor = executors.lanes(num_lanes) if num_lanes % 2 else executors.sharded(2, num_lanes // 2)
    schedule = world.schedule(0, num_lanes, lanes_together=executor.lanes_together)
    ids, steps, digests = worlds.jit(lambda s: executor.train(lambda shared, s: COUNTER, (), s))(schedule)
    seen = [[first + t for t in range(n)] for first, n in zip(schedule.start, schedule.num_steps, strict=True)]
    assert ids.tolist() == list(range(K)) and steps.tolist() == schedule.num_steps.tolist()
    assert digests.tolist() == [functools.reduce(lambda d, m: d * 3 + int(m), s, 0) for s in seen]


def test_each_device_keeps_its_part_of_the_trained_cohort():
    """Each keeps its part of the carries, not all of them."""
    world = worlds.world([16, 48, 16, 32], batch_size=16, cohort_size=4, local_epochs=1)
    schedule = jax.tree.map(jnp.asarray, world.schedule(0, 2))
    executor = executors.sharded(2, 1)
    _, steps, _ = worlds.jit(lambda s: executor.train(lambda shared, s: COUNTER, (), s))(schedule)
    held = [shard.data.tolist() for shard in steps.addressable_shards]
    assert held == [schedule.num_steps[:2].tolist(), schedule.num_steps[2:].tolist()]


def test_a_single_lane_holds_two_models():
    """A step reads the model in a matmul and writes it. Between steps: the live model and the trained one."""
    world = worlds.world([64], batch_size=16, cohort_size=1, local_epochs=1)
    inputs = jnp.ones((16, 300))

    def step(w, k, minibatch):
        return w - inputs.T @ jnp.tanh(inputs @ w)

    client = Client(lambda k: jnp.ones((300, 200)), step)
    train = jax.jit(lambda s: executors.lanes(1).train(lambda shared, s: client, (), s))
    held = train.lower(world.schedule(0)).compile().memory_analysis().temp_size_in_bytes
    model = 4 * 300 * 200
    assert 2 * model <= held < 2.5 * model


@pytest.mark.parametrize("executor", [*EXECUTORS.values(), executors.looped()], ids=[*EXECUTORS, "looped"])
def test_map_applies_the_function_to_every_client_in_cohort_order(executor):
    xs = {"a": jnp.arange(K), "b": jnp.arange(2 * K).reshape(K, 2)}
    found = executor.map(lambda shared, x: shared * x["a"] * x["b"].sum(), jnp.int32(3), xs)
    assert found.tolist() == [3 * k * (2 * k + 2 * k + 1) for k in range(K)]


FEW = Config(clients=6, join_ratio=0.5)
"""A cohort of 3, on a CPU that here has four devices."""


@pytest.mark.parametrize(
    ("changes", "double", "expected"),
    [
        ({"model": "cnn"}, False, 3),
        ({"model": "cnn", "hold": 2}, False, 2),
        ({"model": "mlp"}, False, 1),
        ({"model": "cnn"}, True, 1),
        ({"model": "mlp", "devices": "2"}, False, 2),
        ({"model": "mlp", "devices": "1"}, True, 1),
    ],
)
def test_auto_uses_the_devices_that_are_faster(changes, double, expected):
    with jax.enable_x64(double):
        assert simulation.num_devices(dataclasses.replace(FEW, **changes)) == expected


@pytest.mark.parametrize(("gibibytes", "expected"), [(1, 1), (2, 1), (3, 2), (4, 3), (64, 3)])
def test_vision_transformers_use_as_many_cpu_devices_as_fit_in_half_the_memory(gibibytes, expected):
    """A client of ViT-S/16 takes 640 MiB, so each needs 1.25 GiB of the host's memory."""
    machine = hardware.current()._replace(memory_bytes=gibibytes * 2**30)
    assert simulation.num_devices(dataclasses.replace(FEW, model="vit_s16"), machine) == expected
    assert simulation.num_devices(dataclasses.replace(FEW, model="vit_s16", devices="3"), machine) == 3


@pytest.mark.parametrize(
    ("changes", "double", "said"),
    [
        ({"devices": "5"}, False, "devices 5 of 4 cpu device"),
        ({"devices": "4"}, False, "devices 4 for a cohort of 3; use --devices 3 or fewer"),
        ({"devices": "3", "hold": 2}, False, "devices 3 for blocks of 2"),
        ({"devices": "2"}, True, "in double precision.*use --devices 1"),
    ],
)
def test_unavailable_devices_are_refused(changes, double, said):
    with jax.enable_x64(double), pytest.raises(UsageError, match=said):
        simulation.num_devices(dataclasses.replace(FEW, **changes))
