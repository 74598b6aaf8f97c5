"""A run whose rows stay on the host gives the history of one whose rows are all on the devices, bit for bit."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from support import worlds
from support.several_processes import assert_equal_histories, run_processes
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import tables
from fedvg_jax.runs.placement import pool_rows

SETTINGS = Config(
    clients=8,
    join_ratio=0.5,
    alpha=0.5,
    min_samples=4,
    batch_size=4,
    local_epochs=2,
    rounds=5,
    eval_every=2,
    devices="1",
    record="client_accuracy,accuracy_by_client,confusion",
)
TASK = fv.models.classification(
    fv.models.MLP(worlds.CLASSES, hidden=()), worlds.CLASSES, worlds.IMAGE
)
IMAGES = worlds.random_images()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Chunks of few rows and evaluations in several pieces, as those of large data sets are."""
    monkeypatch.setattr(pool_rows, "CHUNK_BYTES", 2**10)
    monkeypatch.setattr(pool_rows, "PIECE_BYTES", 2**10)


@functools.cache
def run(**changes):
    return fv.run(replace(SETTINGS, **changes), data=IMAGES, task=TASK)


def test_rows_on_the_host_give_the_same_history_to_the_bit():
    assert_equal_runs(run(placement="host"), run(placement="device"))
    host = fv.simulation(replace(SETTINGS, placement="host"), data=IMAGES, task=TASK).host_rows
    assert host.capacity < 200 and all(isinstance(x, np.ndarray) for x in host.pool)
    assert host.piece < 100, "an evaluation has several pieces"


def test_a_run_is_resumed_wherever_its_rows_are(tmp_path):
    for first, then in (("device", "host"), ("host", "device")):
        out = tmp_path / first
        run(placement=first, rounds=4, out=out)
        resumed = run(placement=then, out=out, resume=str(out))
        assert_equal_runs(resumed, run(placement="device"))


@pytest.mark.slow
def test_two_processes_with_rows_on_the_host_give_the_history_of_one(tmp_path):
    """Two processes with the rows on the host write the history of two devices of one process."""
    run_processes(tmp_path, "one", (1, 2), "--rounds", "4", "--placement", "device")
    run_processes(tmp_path, "two", (2, 1), "--rounds", "4", "--placement", "host")
    assert_equal_histories(tmp_path, "two", "one")


# --- where the rows are


def test_rows_stay_on_the_host_where_they_would_fill_the_device():
    gpu = hw.Hardware("gpu", "NVIDIA H100", num_devices=1, cores=16, memory_bytes=80 * 2**30)
    sizes = (40 * 2**30, 60 * 2**30)
    with hw.assumed(gpu):
        assert [tables.stays_on_host("auto", size) for size in sizes] == [False, True]
        assert not tables.stays_on_host("device", sizes[1])
    with hw.assumed(gpu._replace(memory_bytes=None)):
        assert tables.stays_on_host("host", 1)
        assert not tables.stays_on_host("auto", sizes[1])


# --- files read in place


def test_only_two_chunks_of_rows_are_on_the_device():
    sim = fv.simulation(replace(SETTINGS, placement="host"), data=IMAGES, task=TASK)
    compiled, most = chunks.compile_programs(sim), 0
    shape = sim.host_rows.capacity, *worlds.IMAGE
    for _ in chunks.run_chunks(sim, compiled, sim.state, is_single=True):
        most = max(most, sum(array.shape == shape for array in jax.live_arrays()))
    assert most <= 2
