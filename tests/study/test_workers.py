"""Processes that share a sweep; its command tries them in `tests/commands/test_sweep.py`."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fedvg_jax.config import Config
from fedvg_jax.host import hardware
from fedvg_jax.study import workers
from fedvg_jax.study.sweep_trials import Trial

MACHINE = hardware.Hardware("cpu", "", num_devices=4, cores=4, memory_bytes=64 * 2**30)


@pytest.mark.parametrize(
    ("changes", "count", "machine", "jobs"),
    [
        ({}, 30, MACHINE, 4),
        ({}, 9, MACHINE, 2),
        ({}, 3, MACHINE, 1),
        ({}, 30, None, 1),
        ({"model": "lenet5"}, 30, MACHINE, 1),
        ({"model": "lenet5", "devices": "1"}, 30, MACHINE, 4),
    ],
)
def test_auto_starts_a_process_per_core_where_trials_use_one_device(changes, count, machine, jobs):
    trials = [Trial("", {}, Config(**changes))] * count
    assert workers.num_processes("auto", trials, machine) == jobs


def test_a_process_has_as_many_devices_as_one_alone(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert workers.environment(2)["JAX_NUM_CPU_DEVICES"] == str(hardware.num_cores())
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    assert workers.environment(2)["JAX_NUM_CPU_DEVICES"] == "3"
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    assert "JAX_NUM_CPU_DEVICES" not in workers.environment(2)


RECORDED = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], str(os.getpid())).write_text(f"{sorted(os.sched_getaffinity(0))} {os.getppid()}")
"""


def test_processes_have_the_cores_in_parts_and_know_who_started_them(tmp_path, monkeypatch):
    (tmp_path / "recorded.py").write_text(RECORDED)
    cores, variables, lines = os.sched_getaffinity(0), dict(os.environ), []
    with workers.further_processes(
        [str(tmp_path / "recorded.py"), str(tmp_path)], 3, lines.append
    ) as start:
        start()
        own = sorted(os.sched_getaffinity(0))
    assert (os.sched_getaffinity(0), dict(os.environ)) == (cores, variables) and not lines
    written = [path.read_text() for path in tmp_path.iterdir() if path.name.isdecimal()]
    parts = [sorted(cores)[i::3] or [sorted(cores)[i % len(cores)]] for i in range(3)]
    assert own == parts[0] and sorted(written) == sorted(
        f"{part} {os.getpid()}" for part in parts[1:]
    )
    assert not workers.is_orphan()
    monkeypatch.setenv(workers.STARTED_BY, "1234567")
    assert workers.is_orphan()


WAITING = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(600)
"""


def kill_one_and_stop(command, started, lines):
    """Starts two processes, kills one, waits for a line about it, and stops as at Ctrl-C."""
    with workers.further_processes(command, 3, lines.append) as start:
        start()
        while len(list(started.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(int(next(started.iterdir()).name), signal.SIGKILL)
        while not lines:
            time.sleep(0.05)
        raise KeyboardInterrupt


def test_a_process_that_is_killed_gets_a_line_and_one_that_is_stopped_none(tmp_path):
    script, started, lines = tmp_path / "waiting.py", tmp_path / "started", []
    script.write_text(WAITING)
    started.mkdir()
    with pytest.raises(KeyboardInterrupt):
        kill_one_and_stop([str(script), str(started)], started, lines)
    (line,) = lines
    assert "SIGKILL" in line and "\n" not in line
