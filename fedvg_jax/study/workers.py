"""Further processes of a sweep's command on this machine.

Each runs the same command, and takes trials by their locks. One that dies leaves its trial unfinished, and another one
takes it. No jax.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedvg_jax.config import Config, block_size
from fedvg_jax.host import hardware
from fedvg_jax.host.errors import UsageError
from fedvg_jax.models.networks import costs
from fedvg_jax.study.sweep_trials import Trial

STARTED_BY = "FEDVG_JAX_SWEEP_STARTED_BY"
"""Variable of the environment with the id of the process that started this one."""

TRIALS_PER_PROCESS = 4
"""Trials from which on `--jobs auto` starts another process, which takes several seconds to import jax."""


class Stopped(Exception):
    """A signal has stopped the sweep; `results` has the results of the trials before it, by name."""

    def __init__(self, signal: str, results: Mapping[str, Any] = {}) -> None:
        super().__init__(signal)
        self.signal, self.results = signal, results


def num_processes(
    jobs: int | str, trials: Sequence[Trial], machine: hardware.Hardware | None
) -> int:
    """Returns the number of processes that share trials; "auto" is one per core where every trial uses a single device.

    On 2 cores, one process of small networks leaves one core idle. Networks that share a cohort among all cores, and
    accelerators, take one process.

    Args:
        jobs: a number, or "auto".
        trials: that are not finished.
        machine: None where jax may find an accelerator.

    Raises:
        UsageError: `jobs` is something else.

    >>> num_processes("auto", [], None), num_processes(3, [], None)
    (1, 3)
    """
    if jobs != "auto":
        if isinstance(jobs, str) or jobs < 1:
            raise UsageError(f"jobs must be auto or a number >= 1; got {jobs}")
        return jobs
    if machine is None:
        return 1
    with hardware.assumed(machine):
        if any(_num_devices(trial.config) > 1 for trial in trials):
            return 1
    return max(1, min(machine.cores, len(trials) // TRIALS_PER_PROCESS))


def _num_devices(config: Config) -> int:
    """Returns the devices of a run; see `runs.assemble.registry.num_devices`."""
    if config.devices != "auto":
        return int(config.devices)
    return min(block_size(config), hardware.auto_devices(costs(config.model).client_bytes, False))


@contextlib.contextmanager
def further_processes(
    command: Sequence[str], count: int, log: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Shares the cores with further processes of the command; yields the function that starts them.

    They do not get the terminal's signals. At the end they are awaited; an exception asks them to stop first.

    Args:
        command: arguments of Python.
        count: processes, this one included.
        log: called from another thread with a line about a process that was killed.
    """
    added = {
        name: value
        for name, value in environment(count).items()
        if count > 1 and name not in os.environ
    }
    os.environ.update(added)
    cores = (
        sorted(os.sched_getaffinity(0)) if count > 1 and hasattr(os, "sched_getaffinity") else []
    )
    started: dict[subprocess.Popen, threading.Thread] = {}
    stopping = threading.Event()

    def take_cores(index: int) -> None:
        if cores:
            os.sched_setaffinity(0, cores[index::count] or {cores[index % len(cores)]})

    def start() -> None:
        variables = {**os.environ, STARTED_BY: str(os.getpid())}
        for index in range(1, count):
            take_cores(index)  # which a process takes over from the thread that starts it
            words, none = [sys.executable, *command], subprocess.DEVNULL
            process = subprocess.Popen(
                words, env=variables, start_new_session=True, stdin=none, stdout=none
            )
            started[process] = threading.Thread(
                target=_watch, args=(process, stopping, log), daemon=True
            )
            started[process].start()
        take_cores(0)

    take_cores(0)
    try:
        yield start
    except BaseException:
        stopping.set()
        for process in started:
            process.terminate()
        raise
    finally:
        for waiting in started.values():
            waiting.join()
        if cores:
            os.sched_setaffinity(0, cores)
        for name in added:
            del os.environ[name]


def _watch(
    process: subprocess.Popen, stopping: threading.Event, log: Callable[[str], None]
) -> None:
    """Waits for the end of a process, and says it if a signal has killed it amid the work."""
    code = process.wait()
    if code < 0 and not stopping.is_set():
        name = signal.Signals(-code).name
        log(
            f"process {process.pid} of the sweep was killed by {name}; the others compute its trials"
        )


def environment(count: int) -> dict[str, str]:
    """Returns variables of the environment of each of several processes on this machine.

    A process has a part of the cores, but as many CPU devices as one process alone would have. XLA sizes its thread
    pool by the larger of the two numbers, and a smaller pool splits sums differently: Scaffold on digits then differs
    in the last bits from round 5 on, enough to diverge or not.
    """
    variables = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / count:.3f}"}  # of one accelerator
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        variables["JAX_NUM_CPU_DEVICES"] = str(hardware.num_cores())
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def is_started() -> bool:
    """Returns whether another process of the same command has started this one."""
    return STARTED_BY in os.environ


def is_orphan() -> bool:
    """Returns whether the process that started this one has ended."""
    return os.environ.get(STARTED_BY, str(os.getppid())) != str(os.getppid())
