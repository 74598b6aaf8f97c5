"""Shares of workers; their processes are tried in `tests/commands/test_sweep.py`."""

from __future__ import annotations

import itertools
import signal
import sys
import time

import pytest
from support.processes import default_signals

from fedvg_jax.config import Config
from fedvg_jax.host import hardware
from fedvg_jax.study import workers
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.study.workers import Share

GROUPS = [list("abc"), list("d"), list("efgh")]


@pytest.mark.parametrize("count", [1, 5, 20])
def test_shards_partition_the_points_into_stretches_of_equal_size(count):
    shards = [workers.shard(GROUPS, Share(i + 1, count)) for i in range(count)]
    assert list(itertools.chain(*shards)) == list("abcdefgh")
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_worker_has_all_points_and_starts_with_programs_of_its_own(count):
    orders = [workers.own_first(GROUPS, Share(i + 1, count)) for i in range(count)]
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    assert len({order[0] for order in orders[: len(GROUPS)]}) == min(count, len(GROUPS))


MACHINE = hardware.Hardware("cpu", "", num_devices=4, cores=4, memory_bytes=64 * 2**30)


@pytest.mark.parametrize(
    ("changes", "count", "machine", "jobs"),
    [
        ({}, 30, MACHINE, 4),
        ({}, 9, MACHINE, 2),
        ({}, 3, MACHINE, 1),
        ({}, 30, MACHINE._replace(memory_bytes=5 * 2**30), 2),
        ({}, 30, None, 1),
        ({"model": "lenet5"}, 30, MACHINE, 1),
        ({"model": "lenet5", "devices": "1"}, 30, MACHINE, 4),
    ],
)
def test_auto_starts_a_process_per_core_where_points_use_one_device(changes, count, machine, jobs):
    points = [Point("", {}, Config(**changes))] * count
    assert workers.auto_jobs(points, machine) == jobs


def test_worker_has_as_many_devices_as_one_process_alone(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert workers.worker_environment(2)["JAX_NUM_CPU_DEVICES"] == str(hardware.num_cores())
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    assert workers.worker_environment(2)["JAX_NUM_CPU_DEVICES"] == "3"
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert "JAX_NUM_CPU_DEVICES" not in workers.worker_environment(2)


WORKER = """
import os, pathlib, pickle, sys, time
from fedvg_jax.runs import stop_signals
from fedvg_jax.study import workers

with stop_signals.catch_signals() as requests:
    workers.stop_without_parent()
    while not requests.save:
        time.sleep(0.01)
    number = pickle.loads(pathlib.Path(sys.argv[-1]).read_bytes())
    pathlib.Path(sys.argv[1], number).write_text(" ".join(map(str, requests.save)))
    os._exit(0)  # outside of the block, a further request would end it
"""
"""Waits for a request of a checkpoint, and writes it to a file of the worker's number."""


def test_save_requests_reach_every_worker_and_end_none_that_starts(tmp_path, monkeypatch):
    """From the first instant on: Python needs longer to start than the poll."""
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.05)
    deadline = time.monotonic() + 240

    def request():
        assert time.monotonic() < deadline, "no worker received a request"
        signal.raise_signal(signal.SIGUSR1)

    with default_signals():
        stopped_by = workers.run_local([sys.executable, "-c", WORKER, str(tmp_path)], ["1", "2"], request)
    assert stopped_by is None
    assert [set((tmp_path / number).read_text().split()) for number in "12"] == [{"SIGUSR1"}] * 2
