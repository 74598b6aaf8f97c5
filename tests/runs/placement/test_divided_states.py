"""Several devices divide the client states among them, with the results of one device."""

import functools
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
import test_client_states
from support import exchanged, linear, worlds
from support.several_processes import assert_equal_histories, run_processes

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
    config = replace(SETTINGS, devices=str(devices), **changes)
    placement = simulated(devices, **changes).state_placement

    def keep(record, state):
        states.append(placement.save(state))
        last[:] = [state]

    history = fv.run(config, **GIVEN, callbacks=[keep] if callbacks else [])
    return history, states, last and last[0]


def assert_equal_runs(one, other, tolerance=1e-5):
    """Entries of all records, the models, and the states after every round."""
    for mine, its in zip(one[0].records, other[0].records, strict=True):
        for name in mine.keys() - {"seconds"}:
            np.testing.assert_allclose(
                np.asarray(mine[name], float),
                np.asarray(its[name], float),
                tolerance,
                tolerance,
                err_msg=name,
            )
    worlds.assert_close(
        jax.device_get(one[0].variables), jax.device_get(other[0].variables), tolerance
    )
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
    assert {len(leaf) for leaf in jax.tree.leaves(state.clients)} == {
        leaf.shape[0] for leaf in jax.tree.leaves(shapes.clients)
    }
    assert jax.tree.map(lambda x: x.sharding, shapes.clients) == jax.tree.map(
        lambda x: x.sharding, state.clients
    )


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
    run(3, callbacks=False, rounds=2, out=tmp_path / "three")
    leaves = stored.about(stored.checkpoint_path(tmp_path / "three", 2))["leaves"]
    assert leaves["state.clients.w"][0] == [NUM_CLIENTS, 3]
    for devices in (3, 1):
        out = tmp_path / f"on {devices}"
        shutil.copytree(tmp_path / "three", out)
        found = run(
            devices, out=out, resume=str(out), placement="host" if devices == 1 else "device"
        )
        assert_equal_runs(
            found, (run(3)[0], run(3)[1][2:] if devices == 3 else []), 0 if devices == 3 else 1e-5
        )


# --- several processes


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["device", "host"])
def test_processes_that_divide_the_client_states_give_the_history_of_one(tmp_path, placement):
    """A run of two and of four processes, and runs that move between one process and several after two rounds."""
    single, two, four = (1, 1), (2, 2), (4, 1)
    changes = ["--algorithm", "scaffold", "--placement", placement]
    run_processes(tmp_path, "one", single, *changes, "--rounds", "4")
    for name, first, then in (
        ("2x2", two, two),
        ("4x1", four, single),
        ("1", single, two),
        ("2 to 4", two, four),
    ):
        run_processes(tmp_path, name, first, *changes, "--rounds", "2")
        run_processes(tmp_path, name, then, *changes, "--rounds", "4")
        assert_equal_histories(tmp_path, name, "one")
