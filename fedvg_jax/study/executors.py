"""A sweep is a map over executors: processes of this machine, or any `concurrent.futures.Executor`.

On this machine every process is an executor of its own, so that one that is killed takes no other along, and the trials
of one program follow one another in a process. No jax.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from fedvg_jax.config import Config, client_chunk_size
from fedvg_jax.host import hardware
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.models.networks import costs
from fedvg_jax.study.sweep_trials import Trial

TRIALS_PER_PROCESS = 4
"""Trials from which on `--jobs auto` starts another process, which takes several seconds to import jax."""

MOST_LOSSES = 2
"""Processes that a trial may kill, before it counts as failed."""

POLL_SECONDS = 1.0
"""Seconds between two looks at signals, and at trials that other commands compute."""

ExecutorOrMaker = futures.Executor | Callable[[], futures.Executor]
"""An executor, or a function without arguments that makes one, also anew after it broke."""


class Stopped(Exception):
    """A signal has stopped the sweep; `results` has the results of the trials before it, by name."""

    def __init__(self, signal: str, results: dict[str, Any]) -> None:
        super().__init__(signal)
        self.signal, self.results = signal, results


@dataclasses.dataclass
class Slot:
    """An executor with the trials that it computes."""

    executor: Any
    make: Callable[[], Any] | None = None
    """makes it anew after it broke; None if nothing can"""
    width: int | None = None
    """trials that it gets at a time; None for all"""
    process: Any = None
    """future of the id of its single process; None for executors of the caller"""
    pending: dict[Any, Trial] = dataclasses.field(default_factory=dict)
    """future -> trial"""
    program: Hashable = None
    """key of the last trial's program"""


class Queue(NamedTuple):
    """Trials that no executor has got yet."""

    programs: dict[Any, list[Trial]]
    """key of a program -> its trials"""
    begun: set[Any]
    """programs that some process has compiled"""

    def take(self, previous: Hashable) -> tuple[Hashable, Trial]:
        """Returns the next trial for a process, of the previous one's program if there is one left.

        Otherwise it is of a program that no process has begun, or of the one with the most trials.
        """
        program = previous
        if program not in self.programs:
            fresh = [key for key in self.programs if key not in self.begun]
            program = fresh[0] if fresh else max(self.programs, key=lambda k: len(self.programs[k]))
        self.begun.add(program)
        trial = self.programs[program].pop(0)
        if not self.programs[program]:
            del self.programs[program]
        return program, trial

    def put(self, program: Hashable, trial: Trial) -> None:
        """Returns a trial to the queue."""
        self.programs.setdefault(program, []).append(trial)


def compute(
    queue: Queue,
    slots: Sequence[Slot],
    submit: Callable[[Any, Trial], Any],
    on_end: Callable[[Trial, Any], str],
    log: Callable[[str], None],
    received: Sequence[str] = (),
    on_last: Callable[[], None] = lambda: None,
) -> str:
    """Computes all trials of a queue.

    A trial whose process dies is computed again, and fails when it has killed `MOST_LOSSES`. An executor that breaks
    with several trials gets half as many at a time, so that the one that breaks it is found alone.

    Args:
        queue: the trials; it is empty in the end.
        slots: where they are computed.
        submit: (executor, trial) -> future.
        on_end: gets a trial and its future's result, or the exception in its place; returns "held" if the trial has to
            wait for another command, the name of a signal that stops all, or "".
        log: gets a line about every executor that broke.
        received: signals that this process receives; grows.
        on_last: called when the last trial has been given out, and this process has time.

    Returns:
        The signal that stopped the trials, or "".

    Raises:
        UsageError: an executor broke that cannot be made anew.
    """
    programs = {t.name: key for key, trials in queue.programs.items() for t in trials}
    losses: collections.Counter[str] = collections.Counter()
    held: list[Trial] = []
    has_rest = True
    while queue.programs or held or any(slot.pending for slot in slots):
        for slot in slots:
            _fill(slot, queue, submit)
        if has_rest and not queue.programs:
            has_rest = False
            on_last()
        for slot, future in _finished(slots):
            if future not in slot.pending:  # lost with another one
                continue
            trial = slot.pending.pop(future)
            result = _result_of(future)
            if isinstance(result, futures.BrokenExecutor):
                again = [] if received else _take_back(slot, trial, result, losses, log)
                for lost in again:
                    queue.put(programs[lost.name], lost)
                if again or received:
                    continue
                result = RuntimeError(f"its process was killed {MOST_LOSSES} times")
            outcome = on_end(trial, result)
            if outcome == "held":
                held.append(trial)
            elif outcome:
                return outcome
        if received:
            _stop(slots, on_end)
            return received[0]
        if held and not queue.programs:
            if not any(slot.pending for slot in slots):
                time.sleep(POLL_SECONDS)
            while held:
                trial = held.pop(0)
                queue.put(programs[trial.name], trial)
    return ""


def _fill(slot: Slot, queue: Queue, submit: Callable[[Any, Trial], Any]) -> None:
    """Gives an executor as many trials as it may have."""
    while queue.programs and (slot.width is None or len(slot.pending) < slot.width):
        slot.program, trial = queue.take(slot.program)
        try:
            future = submit(slot.executor, trial)
        except futures.BrokenExecutor as error:  # since the last trial
            future = futures.Future()
            future.set_exception(error)
        slot.pending[future] = trial
        if future.done():
            return


def _finished(slots: Sequence[Slot]) -> list[tuple[Slot, Any]]:
    """Waits for a result, or for `POLL_SECONDS`; returns the finished futures with their slots."""
    pending = {future: slot for slot in slots for future in slot.pending}
    if all(isinstance(future, futures.Future) for future in pending):
        futures.wait(pending, POLL_SECONDS, futures.FIRST_COMPLETED)
    elif not any(future.done() for future in pending):  # submitit has futures of its own
        time.sleep(POLL_SECONDS)
    return [(slot, future) for future, slot in pending.items() if future.done()]


def _result_of(future: Any) -> Any:
    """Returns the result of a finished future, or its exception."""
    try:
        return future.result()
    except Exception as error:
        return error


def _take_back(
    slot: Slot,
    trial: Trial,
    error: BaseException,
    losses: collections.Counter[str],
    log: Callable[[str], None],
) -> list[Trial]:
    """Replaces an executor that broke; returns its trials, except one that has killed `MOST_LOSSES` processes alone."""
    lost = [trial, *slot.pending.values()]
    slot.pending.clear()
    _make_anew(slot, error, lost, log)
    if len(lost) == 1:
        losses[trial.name] += 1
    return lost if losses[trial.name] < MOST_LOSSES else []


def _make_anew(
    slot: Slot, error: BaseException, lost: Sequence[Trial], log: Callable[[str], None]
) -> None:
    """Replaces a broken executor."""
    reason = one_line(str(error)).partition(". ")[0][:200]
    if slot.make is None:
        raise UsageError(
            f"the executor broke ({reason}); the same call continues the sweep, and a function that returns an executor"
            " would have it made anew"
        )
    log(f"a process of the sweep died amid {lost[0].name} ({reason}); it is replaced")
    slot.executor.shutdown(wait=False)
    fresh = slot.make()
    slot.width = max(1, len(lost) // 2)
    slot.executor, slot.process, slot.program = fresh.executor, fresh.process, None


def _stop(slots: Sequence[Slot], on_end: Callable[[Trial, Any], str]) -> None:
    """Asks the processes of this machine to stop after their present rounds, and takes in what they finish."""
    for slot in slots:
        for future in slot.pending:
            future.cancel()
        if slot.process is None:  # an executor of the caller, whose processes finish their trials
            slot.pending.clear()
        elif slot.process.done() and slot.pending:
            with contextlib.suppress(ProcessLookupError, futures.BrokenExecutor):
                os.kill(slot.process.result(), signal.SIGTERM)
    while any(slot.pending for slot in slots):
        for slot, future in _finished(slots):
            trial = slot.pending.pop(future)
            result = _result_of(future)
            if not isinstance(result, BaseException):
                on_end(trial, result)


# --- where trials are computed


class Here(futures.Executor):
    """Calls functions in this process, at once."""

    def submit(self, function: Callable, /, *arguments: Any, **keywords: Any) -> futures.Future:
        """Returns a finished future."""
        future: futures.Future = futures.Future()
        future.set_result(function(*arguments, **keywords))
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
    try:
        yield slots
    except BaseException:
        for slot in slots:
            if slot.process is not None:
                slot.executor.shutdown(wait=False, kill_workers=True)
            elif slot.make is not None:
                slot.executor.shutdown(wait=False)
        raise
    for slot in slots:
        if slot.make is not None:
            slot.executor.shutdown()


def _given_slot(executor: ExecutorOrMaker) -> Slot:
    """Returns the slot of a caller's executor."""
    make = None
    if callable(executor) and (isinstance(executor, type) or not hasattr(executor, "submit")):
        make = executor
        executor = make()
    if not callable(getattr(executor, "submit", None)):
        what = "the function of executor returned" if make else "got"
        raise UsageError(
            "executor must be a concurrent.futures.Executor, or a function that returns one;"
            f" {what} {executor!r:.100}"
        )
    return Slot(executor, (lambda: _given_slot(make)) if make else None)


def named(text: str) -> Callable[[], Any]:
    """Returns the function that `--executor MODULE:FUNCTION` names.

    >>> named("concurrent.futures:ThreadPoolExecutor").__name__
    'ThreadPoolExecutor'
    """
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--executor {text[:100]}: {one_line(str(error))}; give MODULE:FUNCTION; the function returns an executor"
        ) from None
    return function


def _local_slot(index: int, count: int) -> Slot:
    """Returns one of several processes of this machine, which get the cores in parts."""
    import loky  # unlike those of the standard library, its processes do not import the script of the caller

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mine = (
        cores[index::count] or cores[index % len(cores) : index % len(cores) + 1] if cores else []
    )
    executor = loky.ProcessPoolExecutor(
        1, env=environment(count), initializer=start_process, initargs=(mine, os.getpid())
    )
    if cores:
        # which the process takes over before its libraries count cores
        os.sched_setaffinity(0, mine)
    try:
        process = executor.submit(import_packages)
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
    return Slot(executor, lambda: _local_slot(index, count), 1, process)


def environment(count: int) -> dict[str, str]:
    """Returns variables of the environment of each of several processes on this machine.

    A process has a part of the cores, but as many CPU devices as one process alone would have. XLA sizes its thread
    pool by the larger of the two numbers, and a smaller pool splits sums differently: Scaffold on digits then differs
    in the last bits from round 5 on, enough to diverge or not.
    """
    # the parts of one accelerator, of which this process may use one, too
    variables = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / (count + 1):.3f}"}
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        variables["JAX_NUM_CPU_DEVICES"] = str(hardware.num_cores())
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def start_process(cores: Sequence[int], parent: int) -> None:
    """Prepares a process of this machine: its cores, and no signals of the terminal.

    If the process that started it dies, it saves its trial and ends.
    """
    os.setsid()
    if cores:
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # loky would collect garbage after every trial, in 0.2 s, and replace a process that has grown by 300 MB
    import loky.process_executor

    loky.process_executor._MEMORY_LEAK_CHECK_DELAY = math.inf  # pyright: ignore

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        while True:  # the first one stops the rounds, the next one the process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(POLL_SECONDS)

    threading.Thread(target=watch, daemon=True).start()


def import_packages() -> int:
    """Imports what trials need, while the process that sends them prepares; returns the id of this process."""
    importlib.import_module("fedvg_jax.study.trial_runs")
    return os.getpid()


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
    return min(
        client_chunk_size(config), hardware.auto_devices(costs(config.model).client_bytes, False)
    )


# --- shards


def read_shard(text: str | None, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns (number from 1, count) of the part of a sweep that this process computes.

    Args:
        text: "I/N"; None for the task of an array of Slurm, or all of the sweep.
        environ: variables of the environment.

    Raises:
        UsageError: it is no part.

    >>> read_shard("2/3"), read_shard(None, {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4",
    ...     "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_MAX": "8"}), read_shard(None, {})
    ((2, 3), (3, 4), (1, 1))
    """
    if text is None and "SLURM_ARRAY_TASK_ID" in environ:
        task, count = (int(environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "COUNT"))
        first = int(environ.get("SLURM_ARRAY_TASK_MIN", 0))
        last = int(environ.get("SLURM_ARRAY_TASK_MAX", first + count - 1))
        step = (last - first) // max(1, count - 1) or 1
        if first + step * (count - 1) != last or (task - first) % step:
            raise UsageError(
                f"task {task} of an array with gaps is no part of the sweep; give --shard I/N, such as --shard 1/1"
            )
        return (task - first) // step + 1, count
    number, _, count = str(text or "1/1").partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"shard must be I/N with I from 1 to N; got {str(text)[:100]}")
    return int(number), int(count)


def shard_of(
    trials: Sequence[Trial], keys: Sequence[Hashable], shard: tuple[int, int]
) -> list[Trial]:
    """Returns the trials of one of several equal parts, which keep those of one program together.

    >>> shard_of(["a0", "b0", "a1", "b1"], ["a", "b", "a", "b"], (2, 2))
    ['b0', 'b1']
    """
    positions = {key: i for i, key in reversed([*enumerate(keys)])}
    ordered = sorted(zip(keys, trials, strict=True), key=lambda item: positions[item[0]])
    number, count = shard
    start, stop = (len(ordered) * i // count for i in (number - 1, number))
    return [trial for _, trial in ordered[start:stop]]
