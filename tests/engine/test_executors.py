"""Every executor, and a round in client chunks, give what a loop over the whole cohort gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support import worlds

import fedvg_jax
from fedvg_jax import compression, config, resolve
from fedvg_jax.core import groups, tree
from fedvg_jax.core.types import Client
from fedvg_jax.engine import (
    attacks,
    differentiable,
    executors,
    federated_round,
    local_training,
    privacy,
)
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import plain as mlp, task as tasks
from fedvg_jax.weightings import baselines, basic
from fedvg_jax.weightings.fedvg import NormParts, inverse_norms

TASK, K = worlds.QUADRATIC, 5


@functools.cache
def world():
    """Six quadratics of 4 to 8 rows, one without a step; five play. The data of client 3 are not finite."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.5, 2, (6, 3))
    b = rng.normal(size=(6, 3))
    b[3] = np.nan
    return worlds.quadratics(a, b, [4, 8, 2, 6, 1, 5], K)


def falls(count):
    """Norms whose right group is above the floor until the client of 8 rows."""
    return {"left": {"x": jnp.where(count == 8, 1e9, count)}, "right": {"x": 1 / (1 + count)}}


def rises(count):
    """Norms whose right group is above the floor from the client of 8 rows on."""
    return {"left": {"x": count}, "right": {"x": jnp.where(count == 8, 5.0, 1e-7 * (1 + count))}}


def crossing(norms_of):
    """Layerwise FedVG, of which a group crosses the floor between client chunks."""

    def signal(hyper, client, data):
        return norms_of(client.num_samples.astype(float))

    return inverse_norms(NormParts(signal, groups.layerwise, TASK.block_of))


def menu(algorithm):
    """Weights of two terms in one program, and the two rules that cross the floor."""
    named = worlds.weighting("samples+fedvg", algorithm)
    return worlds.any_of([named, crossing(falls), crossing(rises)])


def after_two_rounds(step, state, size, hyper):
    """In each, one client drops out besides the one that diverges."""
    results = []
    for number in range(2):
        schedule = world().schedule(number, 2, probe_ratio=0.5, client_chunk_size=size)
        schedule = schedule._replace(participating=np.arange(K) != 3 * number)
        state, metrics = step(state, schedule, world().data(), hyper)
        results.append(metrics)
    return state, results


def test_client_chunks_equal_the_whole_cohort(x64):
    """Of an algorithm that remembers, probes, and sends both kinds of messages."""
    algorithm = worlds.full_algorithm()
    hyper = worlds.hyper(momentum=0.5)
    optimiser = resolve.method.make_optimiser(config.Config(momentum=0.5))
    step = worlds.make_round(world(), algorithm, menu(algorithm), optimiser=optimiser)
    start = worlds.state(world(), algorithm, TASK)
    for number in range(3):
        hyper |= {"rule": jnp.int32(number)}
        expected = after_two_rounds(step, start, None, hyper)
        assert expected[1][0].finite.sum() == K - 1  # one diverged, one dropped out
        worlds.assert_close(after_two_rounds(step, start, 2, hyper), expected, 1e-9)


def test_client_chunks_on_devices_equal_the_whole_cohort_with_running_statistics(x64):
    """Corrupt clients return noise of their own in both, updates are rounded and clipped, and the round has its noise
    once; FedVG by tensor leaves statistics uniform weights."""
    net = world()
    task = worlds.STATISTIC
    algorithm = worlds.algorithm("feddyn")._replace(send=compression.qsgd(2))
    rule = worlds.weighting("fedvg", algorithm, task, granularity="layerwise", norm="delta")
    options = {
        "disturb": attacks.disturbance(attacks.noise("attack_scale"), np.array([0, 2]), 6),
        "private": privacy.tensorwise,
        "stats_too": True,
    }

    def after(executor, size):
        # clients 1 and 5 are sound, 3 diverges
        plan = [net.schedule(2, executor.num_lanes, client_chunk_size=size)]
        values = worlds.hyper(attack_scale=0.5, **{"dp.clip": 0.3, "dp.noise_multiplier": 0.4})
        return worlds.play(net, plan, algorithm, rule, task, values, executor=executor, **options)

    worlds.assert_close(after(executors.sharded(2, 1), 2), after(executors.lanes(1), None), 1e-9)


@pytest.mark.slow
def test_gradients_through_client_chunks_equal_those_through_the_whole_cohort(x64):
    net = worlds.uneven(cohort_size=5)
    algorithm = worlds.algorithm("scaffold")
    executor = differentiable.unrolled(net.most_steps())
    rule = worlds.weighting("samples+fedvg", algorithm)
    step = federated_round.make_round(TASK, algorithm, rule, executor, local_training.sgd, 5)

    start = worlds.state(net, algorithm, TASK)
    data = net.data()

    def total(hyper, plan):
        state, _ = step(start, plan, data, hyper)
        return sum(leaf.sum() for leaf in jax.tree.leaves(state.variables))

    whole, cut = (
        worlds.jit(jax.grad(total))(worlds.hyper(), net.schedule(0, client_chunk_size=size))
        for size in (None, 2)
    )
    worlds.assert_close(cut, whole, 1e-9)


# --- state


def scratch(cohort, size):
    """Bytes of scratch of a compiled round on a network of 1e6 parameters, in models."""
    image = (40, 40, 3)
    task = tasks.classification(mlp.MLP(10), 10, image)
    net = worlds.world([4] * 100, batch_size=4, cohort_size=cohort, local_epochs=1)
    net = net._replace(
        pool=fedvg_jax.Batch(np.zeros((len(net.pool.y), *image), np.uint8), net.pool.y)
    )
    algorithm = worlds.algorithm("fedavg")
    hyper = worlds.hyper()
    rule = worlds.weighting("fedvg", algorithm, task, 4)
    step = federated_round.make_round(
        task, algorithm, rule, executors.lanes(1), local_training.sgd, 100
    )
    state = jax.eval_shape(lambda: federated_round.init_state(task, algorithm, 100, hyper))
    plan = net.schedule(0, capacity=100, client_chunk_size=size)
    compiled = worlds.jit(step).lower(state, plan, net.data(), hyper).compile()
    return compiled.memory_analysis().temp_size_in_bytes / (4 * tree.size(state.variables))


def test_memory_depends_on_the_client_chunk_and_not_on_the_cohort():
    """A chunk of five takes two models a client, and a few more; a cohort of a hundred would take two hundred."""
    ten = scratch(10, 5)
    hundred = scratch(100, 5)
    assert hundred == pytest.approx(ten, rel=0.1)
    assert 5 < ten < 20


@pytest.mark.parametrize("name", ["native", *config.WEIGHTINGS])
def test_streamable_names_are_the_rules_with_terms(name):
    rule = worlds.weighting(name, worlds.algorithm("fedavg"))
    assert bool(rule.terms) == config.streams(name)
    assert bool(basic.mix(basic.samples(), rule).terms) == config.streams(f"samples+{name}")
    assert not baselines.permuted(rule).terms


# --- runs


@pytest.mark.parametrize(
    ("cohort", "client_chunk", "size"),
    [(10, 0, 10), (10, 99, 10), (10, 4, 4), (11, 10, 6), (10, 1, 1)],
)
def test_client_chunks_are_as_few_and_as_even_as_possible(cohort, client_chunk, size):
    settings = config.Config(clients=cohort, join_ratio=1.0, client_chunk=client_chunk)
    assert config.client_chunk_size(settings) == size


# --- every executor gives what a Python loop gives


WORLD = worlds.ragged()
CPU = hw.Hardware("cpu", "", 4, 4, None)
GPU = hw.Hardware("gpu", "", 4, 4, None)
EXECUTORS = {
    "lanes 3": (executors.lanes(3), CPU),
    "unrolled": (differentiable.unrolled(WORLD.most_steps(), epochs=3), CPU),
    "4 devices, 2 lanes, packed": (executors.sharded(4, 2), GPU),
}
"""Executors, and hardware."""


def with_momentum(hyper, round):
    """An optimiser with a state, which no client may inherit."""
    return optax.sgd(hyper["lr"], momentum=0.5)


# --- training


def make_client(shared, schedule):
    """One client's training, with the rows of states that a round gives its schedule."""
    schedule = schedule._replace(state_rows=schedule.clients)
    parts = worlds.TASK, worlds.full_algorithm(), with_momentum
    return local_training.make_client(*parts, shared, schedule)


@pytest.fixture(scope="module")
def looped():
    """What all clients share, and the carries of a Python loop over clients and steps."""
    with jax.enable_x64(True):
        schedule = jax.tree.map(jnp.asarray, WORLD.schedule(0))
        shared = worlds.state(WORLD, worlds.full_algorithm()), WORLD.data(), worlds.hyper()
        return shared, worlds.looped(make_client, shared, schedule)


@pytest.mark.parametrize("name", EXECUTORS)
def test_training_of_ragged_clients_equals_the_loop(x64, looped, name):
    """Of a network with running statistics, states, and an optimiser with a state; two clients take no step."""
    (shared, expected), (executor, hardware) = looped, EXECUTORS[name]
    schedule = WORLD.schedule(0, executor.num_lanes, lanes_together=executor.lanes_together)
    with hw.assumed(hardware):
        model = worlds.jit(executor.train, static_argnums=0)(make_client, shared, schedule)
    assert model.params["fc1"]["kernel"].dtype == np.float64
    worlds.assert_close(model, expected, 1e-9)


# --- lanes


COUNTER = Client(lambda k: jnp.zeros((), jnp.int32), lambda steps, k, minibatch: steps + 1)
"""Counts its steps."""


def test_each_device_keeps_its_part_of_the_trained_cohort():
    """Each keeps its part of the carries, not all of them."""
    world = worlds.world([16, 48, 16, 32], batch_size=16, cohort_size=4, local_epochs=1)
    schedule = jax.tree.map(jnp.asarray, world.schedule(0, 2))
    executor = executors.sharded(2, 1)
    steps = worlds.jit(lambda s: executor.train(lambda shared, s: COUNTER, (), s))(schedule)
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


# --- rows that devices divide are read and written as if one device held them all

NUM_ROWS = 12


def client_states():
    """Floats, with infinity and NaN, integers and bools."""
    floats = np.arange(NUM_ROWS * 2, dtype=np.float32).reshape(NUM_ROWS, 2) - 5
    floats[4, 1], floats[7, 0] = np.nan, np.inf
    return {
        "float": floats,
        "int": np.arange(NUM_ROWS, dtype=np.int32) * 2**27 - 7,
        "bool": np.arange(NUM_ROWS) % 3 == 0,
    }


@pytest.mark.parametrize("num_devices", [2, 4])
def test_rows_are_taken_and_put_exactly(num_devices):
    """Rows of every device, in any order; a row past the end is not written."""
    mesh = Mesh(jax.devices()[:num_devices], ("devices",))
    sharding = NamedSharding(mesh, PartitionSpec("devices"))
    every = client_states()
    rows = np.array([7, 1, 11, 4, 0], np.int32)
    targets = np.array([1, 11, 6, 12, 5], np.int32)

    def exchange(every, rows, targets):
        taken = executors.take_rows(every, rows, sharding)
        return taken, executors.put_rows(every, targets, taken, sharding)

    taken, changed = jax.jit(exchange)(jax.device_put(every, sharding), rows, targets)
    for kind, leaf in every.items():
        np.testing.assert_array_equal(taken[kind], leaf[rows])
        expected = np.append(leaf, leaf[:1], 0)
        expected[targets] = leaf[rows]
        np.testing.assert_array_equal(changed[kind], expected[:NUM_ROWS])
        assert changed[kind].sharding.shard_shape(leaf.shape)[0] == NUM_ROWS // num_devices
