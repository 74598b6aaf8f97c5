"""Several devices divide the client states among them, with the results of one device."""

import functools
import shutil
from dataclasses import replace

import chex
import jax
import pytest
import test_client_states
from support import exchanged, linear, worlds
from support.several_processes import assert_equal_histories, run_processes
from support.small_sweeps import timeless

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.runs import chunks
from fedvg_jax.runs.record import stored

NUM_CLIENTS = 22
SETTINGS = replace(test_client_states.SETTINGS, clients=NUM_CLIENTS)
"""Four clients a round. Neither 3 nor 4 divides the clients."""
GIVEN = linear.GIVEN | {"algorithm": worlds.full_algorithm()}


@functools.cache
def run(devices, callbacks=True, **changes):
    """Returns the history, the states after each round as they are stored, and the last state."""
    states, last = [], []
    sim = simulated(devices, **changes)

    def keep(record, state):
        states.append(sim.state_placement.save(state))
        last[:] = [state]

    history = fv.run(sim.config, **GIVEN, callbacks=[keep] if callbacks else [])
    return history, states, last and last[0]


def assert_equal_runs(one, other, tolerance=1e-5):
    """Entries of all records, the models, and the states after every round."""
    worlds.assert_close(timeless(one[0].records), timeless(other[0].records), tolerance)
    models = jax.device_get([one[0].variables, other[0].variables])
    worlds.assert_close(*models, tolerance)
    for mine, its in zip(one[1], other[1], strict=False):
        worlds.assert_close(mine._replace(round=0), its._replace(round=0), tolerance)


def rows_held(state):
    """Numbers of rows that a device holds, of all leaves."""
    leaves = jax.tree.leaves(state.clients)
    return {len(shard.data) for leaf in leaves for shard in leaf.addressable_shards}


def test_devices_that_divide_the_client_states_give_the_run_of_one():
    found = run(3)
    assert_equal_runs(found, run(1))
    assert rows_held(found[2]) == rows_held(simulated().state) == {8}, "also before the first round"


def simulated(devices=3, **changes):
    return resolve.experiment.simulation(
        replace(SETTINGS, devices=str(devices), **changes), **GIVEN
    )


def test_states_of_a_chunk_are_divided_where_the_host_keeps_the_others():
    """A chunk of three rounds of four clients has 12 rows or more."""
    sim = simulated(placement="host")
    placement, chunk = sim.state_placement, [sim.schedule(number) for number in range(3)]
    clients, _ = placement.number_rows(chunk)
    store, without = placement.open(sim.state)
    state = placement.take(store, without, clients)
    assert rows_held(state) == {8}, "all 22 clients and padding"
    shapes = placement.shapes(sim.state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state.clients, shapes.clients)
    pairs = zip(jax.tree.leaves(state.clients), jax.tree.leaves(shapes.clients), strict=True)
    assert all(leaf.sharding == shape.sharding for leaf, shape in pairs)


def exchanged_bytes(sim):
    """Kind of collective -> bytes that a device puts in, in a round of a run's program."""
    return exchanged.of_round(chunks.compile_programs(sim).chunk.as_text())


def test_a_round_exchanges_the_rows_of_its_cohort_whatever_their_number():
    """The state of a client has 3 numbers; a round takes four of them, and gathers four new ones."""
    few, many = (exchanged_bytes(simulated(clients=n, join_ratio=4 / n)) for n in (10, 20))
    assert few == many
    of_cohort = 4 * 4 * 3
    assert of_cohort <= few["all-reduce"] < 3 * of_cohort and few["all-gather"] <= 2 * of_cohort


def test_devices_of_a_cpu_exchange_the_clients_once_and_one_mean():
    """The weighted mean is a loop over clients on a CPU, for which XLA would gather all of them on every device."""
    config = Config(rounds=2, clients=4, join_ratio=1.0, alpha=1.0, min_samples=2, devices="4")
    sim = resolve.experiment.simulation(config)
    size, model = exchanged_bytes(sim), 4 * tree.size(sim.state.variables.params)
    assert size.keys() == {"reduce-scatter", "all-reduce"}
    assert size["reduce-scatter"] == 4 * (model + 4), (
        "every client's model and loss, zeros where it is not trained"
    )
    assert model <= size["all-reduce"] <= model + 128, (
        "a part of the mean, and 47 bytes of scalars when measured"
    )


def test_a_checkpoint_of_three_devices_is_that_of_one_and_continues_on_any_number(tmp_path):
    """On three devices to the bit."""
    three, one = tmp_path / "three", tmp_path / "one"
    run(3, callbacks=False, rounds=2, out=three)
    leaves = stored.about(stored.checkpoint_path(three, 2))["leaves"]
    assert leaves["state.clients.w"][0] == [NUM_CLIENTS, 3]
    shutil.copytree(three, one)
    history, states, _ = run(3)
    assert_equal_runs(run(3, out=three, resume=str(three)), (history, states[2:]), 0)
    assert_equal_runs(run(1, out=one, resume=str(one), placement="host"), (history, []))


# --- several processes


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["device", "host"])
def test_processes_that_divide_the_client_states_give_the_history_of_one(tmp_path, placement):
    """A run of two and of four processes, and runs that move between one process and several after two rounds."""
    single, two, four = (1, 1), (2, 2), (4, 1)
    changes = ["--algorithm", "scaffold", "--placement", placement]
    run_processes(tmp_path, "one", single, *changes, "--rounds", "4")
    for first, then in ((two, two), (four, single), (single, two), (two, four)):
        name = f"{first} to {then}"
        run_processes(tmp_path, name, first, *changes, "--rounds", "2")
        run_processes(tmp_path, name, then, *changes, "--rounds", "4")
        assert_equal_histories(tmp_path, name, "one")
