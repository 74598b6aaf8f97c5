"""A sweep is a map over executors: processes of this machine, or any `concurrent.futures.Executor`.

On this machine every process is a separate executor, so that one that is killed takes no other along, and the trials
of one program follow one another in a process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import math
import os
import pkgutil
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from fedvg_jax.config import Config, client_chunk_size
from fedvg_jax.core import checks
from fedvg_jax.host import hardware
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.models.networks import costs
from fedvg_jax.study.sweep_trials import Trial
from fedvg_jax.views.output import Log

TRIALS_PER_PROCESS = 4
"""Trials from which on `--jobs auto` starts another process, which takes several seconds to import jax."""

MOST_LOSSES = 2
"""Processes that a trial may kill, before it counts as failed."""

POLL_SECONDS = 0.05
"""Seconds between two looks at futures; submitit's cannot be waited for in another way."""

HELD_SECONDS = 1.0
"""Seconds until a trial is tried again that another command computes."""

ExecutorOrMaker = futures.Executor | Callable[[], futures.Executor]
"""An executor, or a function without arguments that makes one, also anew after it broke."""


class Stopped(Exception):
    """A signal has stopped the sweep; its name is the argument."""


@dataclasses.dataclass
class Slot:
    """An executor with the trials that it computes."""

    executor: Any
    make: Callable[[], Slot] | None = None
    """makes it anew after it broke; None if nothing can"""
    width: float = math.inf
    """trials that it gets at a time"""
    process: Any = None
    """future of the id of its single process; None for executors of the caller"""
    pending: dict[Any, Trial] = dataclasses.field(default_factory=dict)
    """future -> trial"""
    program: Any = None
    """key of the last trial's program"""
    limit: float = math.inf
    """trials that it gets at a time after it broke; every result raises it by one"""


def compute(
    programs: Mapping[Any, Sequence[Trial]],
    slots: Sequence[Slot],
    submit: Callable[[Any, Trial], Any],
    on_end: Callable[[Trial, Any], bool],
    log: Log,
    received: Sequence[str] = (),
) -> None:
    """Computes trials.

    If its process dies, a trial is computed again; it fails when it has killed `MOST_LOSSES`. An executor that breaks
    with several trials gets half as many at a time, so that the one that breaks it is found alone, and one more with
    every result.

    Args:
        programs: key of a program -> its trials.
        slots: where they are computed.
        submit: (executor, trial) -> future.
        on_end: gets a trial and its future's result, or the exception in its place; returns whether the trial has to
            wait for another command.
        log: gets a line about every executor that broke.
        received: signals that this process receives; grows.

    Raises:
        Stopped: by a signal.
        UsageError: an executor broke that cannot be made anew.
    """
    queue = {key: list(trials) for key, trials in programs.items()}
    keys = {trial.name: key for key, trials in programs.items() for trial in trials}
    losses = collections.Counter()
    while any(queue.values()) or any(slot.pending for slot in slots):
        if received:
            _stop(slots, on_end)
            raise Stopped(received[0])
        for slot in slots:
            _fill(slot, queue, submit)
        for slot, trial, answer in _finished(slots):
            result, again = answer, []
            if isinstance(answer, futures.BrokenExecutor):
                again = _take_back(slot, trial, answer, losses, log)
                result = RuntimeError(f"the executor broke {MOST_LOSSES} times amid it: {answer}")
            else:
                slot.limit += 1
            if not again and on_end(trial, result):
                again = [trial]
                time.sleep(HELD_SECONDS)
            for each in again:
                queue[keys[each.name]].append(each)


def _fill(slot: Slot, queue: dict[Any, list[Trial]], submit: Callable[[Any, Trial], Any]) -> None:
    """Gives an executor as many trials as it may have: of its last program, or else of that with the most trials."""
    while any(queue.values()) and len(slot.pending) < min(slot.width, slot.limit):
        if not queue.get(slot.program):
            slot.program = max(queue, key=lambda key: len(queue[key]))
        trial = queue[slot.program].pop(0)
        with checks.calling("executor.submit"):
            try:
                future = submit(slot.executor, trial)
            except futures.BrokenExecutor as error:  # since the last trial
                future = futures.Future()
                future.set_exception(error)
            slot.pending[future] = trial
            if future.done():
                return


def _finished(slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial, Any]]:
    """Takes the finished trials out of their slots, after a pause where there are none.

    Yields slot, trial, and the result of its future, or the exception in its place.
    """
    pending = [(slot, future) for slot in slots for future in slot.pending]
    if not any(future.done() for _, future in pending):
        time.sleep(POLL_SECONDS)
    for slot, future in pending:
        if future.done() and future in slot.pending:  # not lost with another one
            trial = slot.pending.pop(future)
            try:
                result = future.result()
            except (Exception, SystemExit) as error:
                result = error
            yield slot, trial, result


def _take_back(
    slot: Slot,
    trial: Trial,
    error: BaseException,
    losses: collections.Counter[str],
    log: Log,
) -> list[Trial]:
    """Replaces an executor that broke; returns its trials, except one that has killed `MOST_LOSSES` processes alone."""
    lost = [trial, *slot.pending.values()]
    reason = one_line(str(error)).partition(". ")[0][:200]
    if slot.make is None:
        raise UsageError(
            f"the executor broke ({reason}); give a function that returns an executor, to have it made anew; with a"
            " folder, the same call continues the sweep"
        )
    log(f"a process of the sweep died amid {trial.name} ({reason}); it is replaced")
    _shut_down(slot.executor, wait=False)
    fresh = slot.make()
    slot.executor, slot.process, slot.pending = fresh.executor, fresh.process, {}
    slot.limit = max(1, len(lost) // 2)
    if len(lost) == 1:
        losses[trial.name] += 1
    return lost if losses[trial.name] < MOST_LOSSES else []


def _stop(slots: Sequence[Slot], on_end: Callable[[Trial, Any], Any]) -> None:
    """Asks the processes of this machine to stop after their present rounds, and takes in what they finish."""
    for slot in slots:
        for future in slot.pending:
            future.cancel()
        if slot.process is None:  # the processes of a caller's executor finish their trials
            slot.pending.clear()
        elif slot.process.done() and slot.pending:
            with contextlib.suppress(ProcessLookupError, futures.BrokenExecutor):
                os.kill(slot.process.result(), signal.SIGTERM)
    while any(slot.pending for slot in slots):
        for _, trial, result in _finished(slots):
            if not isinstance(result, BaseException):
                with contextlib.suppress(Stopped):  # by the signal that it was sent
                    on_end(trial, result)


# --- where trials are computed


class Here(futures.Executor):
    """Calls functions in this process, at once."""

    def submit(self, function: Callable, /, *arguments: Any) -> futures.Future:
        """Returns a finished future."""
        future = futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def opened(executor: ExecutorOrMaker | None, count: int) -> Iterator[list[Slot]]:
    """Yields the slots of a sweep.

    Args:
        executor: the caller's; one that a function makes is shut down in the end.
        count: processes of this machine, without one; 1 for this process.

    Raises:
        UsageError: `executor` is none, and returns none.
    """
    if executor is not None:
        slots = [_given_slot(executor)]
    elif count == 1:
        slots = [Slot(Here(), width=1)]
    else:
        slots = [_local_slot(index, count) for index in range(count)]
    is_whole = False
    try:
        yield slots
        is_whole = True
    finally:
        for slot in slots:
            if slot.make is not None:
                kills = {} if is_whole or slot.process is None else {"kill_workers": True}
                _shut_down(slot.executor, wait=is_whole, **kills)


def _shut_down(executor: Any, **how: bool) -> None:
    """Shuts an executor down, if it can be: submitit's cannot, and an error would take the results along."""
    with contextlib.suppress(Exception):
        executor.shutdown(**how)


def _given_slot(executor: ExecutorOrMaker) -> Slot:
    """Returns the slot of a caller's executor."""
    made, make = executor, None
    if not isinstance(executor, futures.Executor) and callable(executor):
        with checks.calling("the function of executor"):
            made, make = executor(), lambda: _given_slot(executor)
    if not callable(getattr(made, "submit", None)):
        raise UsageError(
            "executor must be a concurrent.futures.Executor, or a function that returns one;"
            f" got {made!r:.100}"
        )
    # of the standard library's pools of processes
    context = getattr(made, "_mp_context", None)
    if context and context.get_start_method() == "fork":
        raise UsageError(
            "executor: a process that is forked after JAX has started hangs; give"
            ' ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))'
        )
    return Slot(made, make)


def named(text: str) -> Callable[[], Any]:
    """Returns the function that `--executor MODULE:FUNCTION` names.

    >>> named("concurrent.futures:ThreadPoolExecutor").__name__
    'ThreadPoolExecutor'
    """
    with checks.calling(f"--executor MODULE:FUNCTION, here {text[:100]},"):
        return pkgutil.resolve_name(text)


def _local_slot(index: int, count: int) -> Slot:
    """Returns one of several processes of this machine, which get the cores in parts."""
    import loky  # unlike the standard library's, its processes do not import the script of the caller

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mine = cores[index % max(1, len(cores)) :: count]
    executor = loky.ProcessPoolExecutor(
        1, env=environment(count), initializer=start_process, initargs=(mine, os.getpid())
    )
    # the first call starts the process, which imports what trials need while this one prepares
    return Slot(executor, lambda: _local_slot(index, count), 1, executor.submit(os.getpid))


def environment(count: int) -> dict[str, str]:
    """Returns variables of the environment of each of several processes on this machine.

    A process has a part of the cores, but as many CPU devices as one process alone would have. XLA sizes its thread
    pool by the larger of the two numbers, and a smaller pool splits sums differently: Scaffold on digits then differs
    in the last bits from round 5 on, enough to diverge or not.
    """
    # the parts of one accelerator; this process may use one, too
    variables = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / (count + 1):.3f}"}
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        variables["JAX_NUM_CPU_DEVICES"] = str(hardware.num_cores())
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def start_process(cores: Sequence[int], parent: int) -> None:
    """Prepares a process of this machine: its cores, its imports, and no signals of the terminal.

    If the process that started it dies, it saves its trial and ends.
    """
    os.setsid()
    if cores:
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # loky would collect garbage after every trial, in 0.2 s, and replace a process that has grown by 300 MB
    import loky.process_executor

    loky.process_executor._MEMORY_LEAK_CHECK_DELAY = math.inf  # pyright: ignore
    importlib.import_module("fedvg_jax.study.trial_runs")

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(HELD_SECONDS)
        while True:  # the first one stops the rounds, the next one the process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(HELD_SECONDS)

    threading.Thread(target=watch, daemon=True).start()


def num_processes(jobs: int | str, trials: Sequence[Trial]) -> int:
    """Returns the number of processes that share trials; "auto" is one per core where every trial uses a single device.

    On 2 cores, one process of small networks leaves one core idle. Networks that share a cohort among all cores, and
    accelerators, take one process.

    Args:
        jobs: a number, or "auto".
        trials: that are not finished.

    Raises:
        UsageError: `jobs` is something else.

    >>> num_processes("auto", []), num_processes("3", [])
    (1, 3)
    """
    if jobs != "auto":
        if not str(jobs).isdecimal() or int(jobs) < 1:
            raise UsageError(f"jobs must be auto or a number >= 1; got {jobs!s:.100}")
        return int(jobs)
    machine = hardware.without_jax()
    if machine is None:
        return 1
    with hardware.assumed(machine):
        if any(_num_devices(trial.config) > 1 for trial in trials):
            return 1
    return max(1, min(machine.cores, len(trials) // TRIALS_PER_PROCESS))


def _num_devices(config: Config) -> int:
    """Returns the devices of a run; see `resolve.machine.num_devices`."""
    if config.devices != "auto":
        return int(config.devices)
    client_bytes = costs(config.model).client_bytes
    return min(client_chunk_size(config), hardware.auto_devices(client_bytes, False))


# --- shards


def default_shard(environ: Mapping[str, str] = os.environ) -> str:
    """Returns "I/N" for task I of N of an array of Slurm, and otherwise "1/1".

    Raises:
        UsageError: the numbers of the tasks have gaps, or are not all there. Slurm sets all four; without the first of
            them, task 1 of 2 may be either.

    >>> default_shard({f"SLURM_ARRAY_TASK_{k}": v for k, v in zip(("ID", "COUNT", "MIN", "MAX"), "6458")})
    '2/4'
    """
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return "1/1"
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN", "MAX")]
    numbers = {name: environ.get(name, "") for name in names}
    if all(map(str.isdecimal, numbers.values())):
        task, count, first, last = map(int, numbers.values())
        if last - first + 1 == count:
            return f"{task - first + 1}/{count}"
    raise UsageError(f"{numbers} do not say which part a task has; give --shard I/N")


def of_shard(trials: Sequence[Trial], shard: str) -> list[Trial]:
    """Returns part I of N of the trials.

    Args:
        trials: in an order that keeps the trials of one program together, as the order of the axes does.
        shard: "I/N", with I from 1.

    Raises:
        UsageError: it is no part.

    >>> of_shard(["a0", "a1", "b0", "b1"], "2/2")
    ['b0', 'b1']
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(shard), re.ASCII)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"shard must be I/N with I from 1 to N; got {shard!s:.100}")
    start, stop = (len(trials) * i // count for i in (number - 1, number))
    return list(trials[start:stop])
