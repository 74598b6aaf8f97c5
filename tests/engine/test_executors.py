"""Every executor gives what a Python loop gives."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import worlds

from fedvg_jax.core.types import Client
from fedvg_jax.engine import differentiable, executors, local_training
from fedvg_jax.host import hardware as hw

WORLD = worlds.ragged()
K = WORLD.cohort_size
EXECUTORS = {
    "lanes 3": executors.lanes(3),
    "unrolled": differentiable.unrolled(WORLD.most_steps(), epochs=3),
    "4 devices, 2 lanes, packed": executors.sharded(4, 2),
}


def with_momentum(hyper, round):
    """An optimiser with a memory, which no client may inherit."""
    return optax.sgd(hyper["lr"], momentum=0.5)


# --- training


make_client = functools.partial(local_training.make_client, worlds.TASK, worlds.full_algorithm(), with_momentum)


@pytest.fixture(scope="module")
def looped():
    """What all clients share, and the carries of a Python loop over clients and steps."""
    with jax.enable_x64(True):
        schedule = jax.tree.map(jnp.asarray, WORLD.schedule(0))
        shared = worlds.state(WORLD, worlds.full_algorithm()), WORLD.data(), worlds.hyper()
        return shared, worlds.looped(make_client, shared, schedule)


@pytest.mark.parametrize("name", EXECUTORS)
def test_training_of_ragged_clients_equals_the_loop(x64, looped, name):
    """Of a network with running statistics, memories, and an optimiser with a memory; two clients take no step."""
    (shared, expected), executor = looped, EXECUTORS[name]
    schedule = WORLD.schedule(0, executor.num_lanes, lanes_together=executor.lanes_together)
    with hw.assumed(hw.Hardware("gpu", "", 4, 4, None)) if "packed" in name else contextlib.nullcontext():
        model = worlds.jit(lambda *arguments: executor.train(make_client, *arguments))(shared, schedule)
    assert model.params["fc1"]["kernel"].dtype == np.float64
    worlds.assert_close(model, expected, 1e-9)


# --- lanes


COUNTER = Client(
    init=lambda k: (k, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
    step=lambda carry, k, minibatch: (k, carry[1] + 1, carry[2] * 3 + minibatch),
)
"""Counts its steps, and digests which minibatches it saw in which order."""


def test_a_lane_runs_schedules_of_any_number_of_lanes():
    train = worlds.jit(lambda s: executors.lanes(1).train(lambda shared, s: COUNTER, (), s))
    whole = train(WORLD.schedule(0, 1))
    for num_lanes in (2, 3):
        jax.tree.map(np.testing.assert_array_equal, train(WORLD.schedule(0, num_lanes)), whole)


@pytest.mark.parametrize("executor", [executors.lanes(1), executors.lanes(3), executors.sharded(2, 7)])
def test_lanes_without_work_and_clients_without_steps_change_nothing(executor):
    train = worlds.jit(lambda s: executor.train(lambda shared, s: COUNTER, (), s))
    for sizes in ([1] * K, [200, *[1] * (K - 1)], [0] * (K - 1) + [40], [48] * K):
        world = worlds.world(sizes, batch_size=16, cohort_size=K, local_epochs=1)
        schedule = world.schedule(0, executor.num_lanes, lanes_together=executor.lanes_together)
        ids, steps, digests = train(schedule)
        minibatches = [range(first, first + n) for first, n in zip(schedule.start, schedule.num_steps, strict=True)]
        assert ids.tolist() == list(range(K)) and steps.tolist() == schedule.num_steps.tolist()
        assert digests.tolist() == [functools.reduce(lambda d, m: d * 3 + int(m), s, 0) for s in minibatches]


def test_each_device_keeps_its_part_of_the_trained_cohort():
    """Each keeps its part of the carries, not all of them."""
    world = worlds.world([16, 48, 16, 32], batch_size=16, cohort_size=4, local_epochs=1)
    schedule = jax.tree.map(jnp.asarray, world.schedule(0, 2))
    executor = executors.sharded(2, 1)
    _, steps, _ = worlds.jit(lambda s: executor.train(lambda shared, s: COUNTER, (), s))(schedule)
    held = [shard.data.tolist() for shard in steps.addressable_shards]
    assert held == [schedule.num_steps[:2].tolist(), schedule.num_steps[2:].tolist()]


def test_a_single_lane_holds_at_most_two_models():
    """A step reads the model in a matmul and writes it. The only client's is trained in place of the stored one."""
    world = worlds.world([64], batch_size=16, cohort_size=1, local_epochs=1)
    inputs = jnp.ones((16, 300))

    def step(w, k, minibatch):
        return w - inputs.T @ jnp.tanh(inputs @ w)

    client = Client(lambda k: jnp.ones((300, 200)), step)
    train = jax.jit(lambda s: executors.lanes(1).train(lambda shared, s: client, (), s))
    held = train.lower(world.schedule(0)).compile().memory_analysis().temp_size_in_bytes
    model = 4 * 300 * 200
    assert model <= held < 2.5 * model


@pytest.mark.parametrize(
    "executor", [executors.lanes(1), executors.vmapped(), executors.sharded(4, 2), executors.lanes(1, num_mapped=3)]
)
def test_map_applies_the_function_to_every_client_in_cohort_order(executor):
    xs = {"a": jnp.arange(K), "b": jnp.arange(2 * K).reshape(K, 2)}
    products = worlds.jit(lambda *given: executor.map(lambda n, x: n * x["a"] * x["b"].sum(), *given))(jnp.int32(3), xs)
    assert products.tolist() == [3 * k * (2 * k + 2 * k + 1) for k in range(K)]
