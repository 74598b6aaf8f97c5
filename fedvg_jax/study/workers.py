"""Processes that share the points of a sweep: workers on this machine, and jobs that submitit starts on a cluster.

Every worker gets all points, those of its share first, and takes them by their locks. A worker that dies leaves its
point unfinished, and another one takes it. No jax.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedvg_jax.config import Config, block_size
from fedvg_jax.config.networks import costs
from fedvg_jax.host import extras
from fedvg_jax.host import hardware as hw
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs import stop_signals
from fedvg_jax.study.sweep_points import Point

T = TypeVar("T")

POLL_SECONDS = 0.5
"""Seconds between two looks at the workers."""

POINTS_PER_PROCESS = 4
"""Points from which on `--jobs auto` starts another process, which takes several seconds to import jax."""

BYTES_PER_PROCESS = 2 * 2**30
"""Memory that `--jobs auto` allows for each process."""

TIMEOUT_MINUTES = 24 * 60
"""Time limit of a cluster's job, where the user gives none."""


class Share(NamedTuple):
    """One of several equal parts."""

    index: int
    """from 1"""
    count: int


def parse_share(text: str) -> Share:
    """Returns the part that a text such as "2/4" names.

    >>> parse_share("2/4")
    Share(index=2, count=4)
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    index, count = (int(number) for number in match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(f"--shard must be I/N with I from 1 to N, such as 2/4; got {text[:50]}")
    return Share(index, count)


def shard(groups: Sequence[Sequence[T]], share: Share) -> list[T]:
    """Returns the points of one shard: a stretch of all points in the order of their programs.

    >>> [shard([[1, 2, 3], [4, 5]], Share(i, 2)) for i in (1, 2)]
    [[1, 2], [3, 4, 5]]
    """
    points = [point for group in groups for point in group]
    start, stop = (len(points) * i // share.count for i in (share.index - 1, share.index))
    return points[start:stop]


def own_first(groups: Sequence[Sequence[T]], share: Share) -> list[T]:
    """Returns all points, those of a worker's own programs first, so that few programs are compiled twice.

    >>> own_first([["a"], ["b", "c"], ["d"]], Share(2, 2))
    ['b', 'c', 'd', 'a']
    """
    own = groups[share.index - 1 :: share.count]
    others = [group for i, group in enumerate(groups) if i % share.count != share.index - 1]
    return [point for group in (*own, *reversed(others)) for point in group]


def take_cores(share: Share) -> None:
    """Restricts this process to its share of the cores it may use; before jax counts them."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[share.index - 1 :: share.count] or {cores[share.index % len(cores)]})


def auto_jobs(points: Sequence[Point], machine: hw.Hardware | None) -> int:
    """Returns the number of processes that `--jobs auto` starts: one per core, where every point uses a single device.

    On 2 cores, one process of small networks leaves one core idle. Networks whose cohorts use all cores, and
    accelerators, take one process.

    Args:
        points: that are not finished.
        machine: `hardware.without_jax()`.

    >>> auto_jobs([], None)
    1
    """
    if machine is None:
        return 1
    with hw.assumed(machine):
        if any(_num_devices(point.config) > 1 for point in points):
            return 1
    limits = [machine.cores, len(points) // POINTS_PER_PROCESS]
    if machine.memory_bytes is not None:
        limits.append(machine.memory_bytes // BYTES_PER_PROCESS)
    return max(1, min(limits))


def _num_devices(config: Config) -> int:
    """Returns the devices of a run; see `runs.assemble.registry.num_devices`."""
    if config.devices != "auto":
        return int(config.devices)
    return min(block_size(config), hw.auto_devices(costs(config.model).client_bytes, False))


def stop_without_parent() -> None:
    """Ends this process like SIGTERM when standard input closes: the process that started it has died.

    Until then every byte is a request of a checkpoint. A signal could end a process that has no handler yet.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def run_local(command: Sequence[str], jobs: Sequence[Any], on_poll: Callable[[], None]) -> str | None:
    """Runs workers on this machine to their end; returns the signal that stopped them, or None.

    Signals that request a checkpoint, and the first one that requests to stop, are forwarded to all of them.

    Args:
        command: of a worker, to which a file with its job is appended.
        jobs: one for each worker, which are pickled.
        on_poll: called about twice a second.

    Raises:
        KeyboardInterrupt: a second stop signal, unless it ends the process; the workers are killed.
    """
    environment = worker_environment(len(jobs))
    workers: list[subprocess.Popen] = []

    def is_over() -> bool:
        return all(worker.poll() is not None for worker in workers)

    with contextlib.ExitStack() as stack, stop_signals.catch_signals() as requests:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for i, job in enumerate(jobs):
            (folder / f"{i}").write_bytes(pickle.dumps(job))
            words = [*command, str(folder / f"{i}")]
            # in sessions of their own: a terminal's signals reach them through this process only
            worker = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment, start_new_session=True, bufsize=0)
            stack.callback(_end, worker)
            workers.append(worker)
        num_forwarded = 0
        while not is_over():
            stops, saves = requests.stop[num_forwarded:1], stop_signals.take_save_requests(requests)
            num_forwarded += len(stops)
            for worker in workers:
                for name in stops:
                    worker.send_signal(signal.Signals[name])  # does nothing to one that has ended
                assert worker.stdin is not None
                with contextlib.suppress(OSError):
                    worker.stdin.write(b" " * len(saves))
            on_poll()
            time.sleep(POLL_SECONDS)
        on_poll()
        return requests.stop[0] if requests.stop else None


def worker_environment(count: int) -> dict[str, str]:
    """Returns the environment of each of several workers on this machine.

    A worker has a part of the cores, but as many CPU devices as one process alone would have. XLA sizes its thread pool
    by the larger of the two numbers, and a smaller pool splits sums differently: Scaffold on digits then differs in the
    last bits from round 5 on, enough to diverge or not.
    """
    environment = dict(os.environ)
    if "device_count" not in environment.get("XLA_FLAGS", ""):
        environment.setdefault("JAX_NUM_CPU_DEVICES", str(hw.num_cores()))
    environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / count:.3f}")  # of one accelerator
    return environment


def _end(worker: subprocess.Popen) -> None:
    """Kills a worker that still runs."""
    if worker.poll() is None:
        worker.kill()
    assert worker.stdin is not None
    with contextlib.suppress(OSError):
        worker.stdin.close()
    worker.wait()


def run_submitit(
    function: Callable[..., int],
    arguments: Sequence[tuple[Any, ...]],
    folder: Path,
    options: Mapping[str, Any],
    on_poll: Callable[[], None],
    log: Callable[[str], None],
) -> str | None:
    """Runs an array of jobs by submitit to their end: SLURM where there is one, otherwise processes of this machine.

    Args:
        function: importable; takes the arguments of a job.
        arguments: of every job.
        folder: for the jobs' logs.
        options: parameters of submitit's executor, such as {"slurm_partition": "gpu"}.
        on_poll: called about twice a second.
        log: called with a line about the jobs.

    Returns:
        The signal that ended the waiting, or None. The jobs go on after a signal.

    Raises:
        UsageError: submitit is missing or refuses an option, or the cluster refuses the jobs.
    """
    submitit = extras.load("submitit", "slurm", "--executor submitit")
    executor = submitit.AutoExecutor(folder=folder)
    try:
        executor.update_parameters(**{"timeout_min": TIMEOUT_MINUTES, "name": "fedvg-sweep", **options})
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(f"submitit refuses --slurm: {' '.join(str(error).split())[:300]}") from None
    with stop_signals.catch_signals() as requests:
        try:
            jobs = executor.map_array(function, *zip(*arguments, strict=True))
        except RuntimeError as error:  # of submitit, for what sbatch prints
            raise UsageError(f"the cluster refuses the jobs ({one_line(str(error))[:300]}); correct --slurm") from None
        names = ", ".join(job.job_id for job in jobs)
        log(f"{len(jobs)} job{'s' * (len(jobs) != 1)} of {executor.cluster}: {names}; logs in {folder}")
        while not requests.stop and not all(job.done() for job in jobs):
            on_poll()
            time.sleep(POLL_SECONDS)
        on_poll()
        if requests.stop:
            log(f"the jobs {names} go on; the same command shows their results")
            return requests.stop[0]
    for job in jobs:
        if (error := job.exception()) is not None:
            log(f"job {job.job_id} was lost: {' '.join(str(error).split())[:200]}; its points are unfinished")
    return None


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Returns the parameters of submitit's executor; whole numbers as numbers.

    >>> parse_options(["timeout_min=60", "slurm_partition=gpu"])
    {'timeout_min': 60, 'slurm_partition': 'gpu'}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, is_pair, value = word.partition("=")
        if not is_pair or not name.isidentifier():
            raise UsageError(f"--slurm takes NAME=VALUE, such as slurm_partition=gpu; got {word[:50]}")
        options[name] = int(value) if value.isdecimal() else value
    return options
