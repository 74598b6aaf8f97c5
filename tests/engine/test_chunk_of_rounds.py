"""Rounds in chunks: the same numbers however they are cut, and one program for everything that is data."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from support import worlds

from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.engine import federated_round, schedule as schedules

WORLD = worlds.uneven()
MAX_ROUNDS = 5
ALGORITHM = worlds.full_algorithm()


def schedule_of(number, **changes):
    return WORLD.schedule(number, 2, probe_ratio=0.9, dropout=0.3, **changes)


def in_chunks(chunk, sizes):
    """The final state, and the metrics of all rounds [R, K]."""
    state = worlds.state(WORLD, ALGORITHM, worlds.QUADRATIC)
    results = []
    done = 0
    for size in sizes:
        rounds = schedules.stack(
            [schedule_of(done + i, capacity=128) for i in range(size)], MAX_ROUNDS
        )
        state, metrics = chunk(state, np.int32(size), rounds, WORLD.data(), worlds.hyper())
        assert not any(leaf[size:].any() for leaf in jax.tree.leaves(metrics))
        results.append(jax.tree.map(lambda leaf, size=size: leaf[:size], metrics))
        done += size
    return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def test_rounds_are_bit_identical_in_chunks_of_any_size_and_equal_rounds_without_chunks(x64):
    round_step = worlds.round_step(WORLD, ALGORITHM, "fedvg")
    chunk = worlds.jit(federated_round.make_chunk(round_step))
    step = worlds.jit(round_step)
    alone = in_chunks(chunk, [1, 1, 1, 1])
    for sizes in ([4], [1, 2, 1]):
        jax.tree.map(np.testing.assert_array_equal, in_chunks(chunk, sizes), alone)
    state = worlds.state(WORLD, ALGORITHM, worlds.QUADRATIC)
    results = []
    for number in range(4):
        state, metrics = step(state, schedule_of(number), WORLD.data(), worlds.hyper())
        results.append(metrics)
    worlds.assert_close(alone, (state, jax.tree.map(lambda *x: np.stack(x), *results)), 1e-9)


DIGESTS_OF_PROGRAMS = """
import hashlib
import numpy as np
from fedvg_jax import Config, simulation
from fedvg_jax.engine import schedule
from fedvg_jax.runs.assemble import tables
images = np.arange(320, dtype=np.uint8).reshape(80, 2, 2, 1), np.arange(80) % 3
sim = simulation(Config(clients=2, local_epochs=1, alpha=10.0, lanes="1"), data=images)
rounds = schedule.stack([sim.schedule(0)], tables.MAX_ROUNDS)
chunk = sim.chunk.lower(sim.state, np.int32(1), rounds, sim.data, sim.hyper)
evaluate = sim.evaluate.lower(sim.state.variables, sim.data.pool, sim.data.val)
digests = [hashlib.sha256(program.as_text().encode()).hexdigest() for program in (chunk, evaluate)]
"""


def test_processes_share_programs_in_the_compilation_cache():
    """This one and another, under different seeds of Python's string hashes."""
    exec(DIGESTS_OF_PROGRAMS, here := {})
    command = [sys.executable, "-c", DIGESTS_OF_PROGRAMS + "print(*digests)"]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    changed = os.environ | {"PYTHONHASHSEED": seed}
    other = subprocess.run(command, env=changed, capture_output=True, text=True, check=True)
    assert other.stdout.split() == here["digests"] and len(set(here["digests"])) == 2


@pytest.mark.parametrize(
    ("num_clients", "size", "width"), [(100, 32, 16), (4, 32, 32), (4, 2**32 - 1, 512)]
)
def test_a_minibatch_is_no_wider_than_the_largest_client_s_power_of_two(num_clients, size, width):
    """Of 18 of the 1,797 digits 18 - 4 - 1 = 13 train, without a quarter and a tenth; of 450, 450 - 112 - 45 = 293."""
    settings = Config(clients=num_clients, partition="iid", batch_size=size)
    made = resolve.experiment.simulation(settings)
    schedule = made.schedule(0)
    assert schedule.rows.shape[1] == width
    num_rows = sum(len(made.partition.train[client]) for client in schedule.clients)
    assert (schedule.rows >= 0).sum() == made.config.local_epochs * num_rows
