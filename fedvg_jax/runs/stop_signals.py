"""Signals during a run: some end it after a checkpoint, others request a checkpoint only.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and returns. SIGUSR1 (a scheduler's early warning) and SIGQUIT save a checkpoint, and the run continues.

Python runs a handler only after the main thread has returned from the device. A watching thread receives the signal at
once and can end the process. A command line also has such a thread before and after its rounds, where there is nothing
to save and a signal ends it at once: an exception that a handler raises is lost where jax calls back into Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

GRACE = 10.0
"""Seconds that a chunk has to end after a stop signal if all finished rounds are saved; schedulers commonly kill 30
seconds after SIGTERM."""


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = (signal.SIGUSR1, signal.SIGQUIT)
ALWAYS_CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""Other signals keep a handler that is not the default: nohup ignores SIGHUP, and a caller may use SIGUSR1."""

REPEATED = (signal.SIGHUP,)
"""Shells and the kernel both send it when a terminal closes, so a second one is not a request to stop at once."""


MERGED = 0.1
"""Seconds within which equal signals count once. GNU timeout and some schedulers send a signal to the process and to
its group, microseconds apart, and a busy process sees them up to 40 ms apart. A person needs longer for a second one.
"""


POLL_SECONDS = 0.1
"""Seconds between two looks whether all finished rounds are saved."""


SHOW_CURSOR = b"\x1b[?25h"
"""The terminal's sequence that undoes the hidden cursor of a progress bar."""


class Requests(NamedTuple):
    """Names of signals that were received and not yet answered."""

    stop: list[str]
    save: list[str]


def exit_code(name: str) -> int:
    """Returns 128 + the signal's number, as shells do: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def catch_signals() -> Iterator[Requests]:
    """Collects signals in place of their usual effect.

    A second SIGINT or SIGTERM raises KeyboardInterrupt. `end_at_once` learns which signals were answered here. No-op
    outside the main thread, where Python cannot install signal handlers.
    """
    requests = Requests([], [])
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    is_duplicate = _duplicate_filter()
    endings = {number: h for number in STOPPING if isinstance(h := signal.getsignal(number), _Ending)}

    def handle(number: int, frame) -> None:
        name = signal.Signals(number).name
        if ending := endings.get(signal.Signals(number)):
            ending.answered[number] = time.monotonic()
        if is_duplicate(number):
            return
        if number in SAVING:
            requests.save.append(name)
            return
        requests.stop.append(name)
        if _is_second_request([signal.Signals[name] for name in requests.stop]):
            raise KeyboardInterrupt

    saving = [number for number in SAVING if _has_default_handler(number)]
    with _handlers(dict.fromkeys([*_caught_stops(), *saving], handle)):
        yield requests


def agree(requests: Requests, largest: Callable[[Sequence[float]], list[float]]) -> Requests:
    """Returns the requests of all processes of a run, so that all stop or save after the same round.

    Args:
        requests: of this process; those that are returned are removed, except to stop.
        largest: numbers -> the largest over all processes, position by position.
    """
    own = Requests(list(requests.stop), take_save_requests(requests))
    numbers = largest([signal.Signals[names[0]] if names else 0 for names in own])
    others = [[signal.Signals(int(number)).name] if number else [] for number in numbers]
    return Requests(own.stop or others[0], own.save or others[1])


def _caught_stops() -> list[signal.Signals]:
    """Returns the stop signals to catch: the others are ignored, or handled by other code."""
    return [number for number in STOPPING if number in ALWAYS_CAUGHT or _has_default_handler(number)]


class _Ending(NamedTuple):
    """The handler of `end_at_once`. The thread that watches calls it, too; the first of the two ends the process."""

    exit_message: Callable[[], str]
    first: threading.Lock
    answered: dict[int, float]
    """signal that the run has stopped for already -> when it came last"""

    def __call__(self, number: int, frame=None) -> None:
        now = time.monotonic()
        if number in self.answered and (number in REPEATED or now - self.answered[number] < MERGED):
            self.answered[number] = now
        elif self.first.acquire(blocking=False):
            _end_process(number, self.exit_message)


@contextlib.contextmanager
def end_at_once(exit_message: Callable[[], str]) -> Iterator[None]:
    """Ends the process at the first stop signal, with one line and the exit code of the signal.

    For the process of a command line only: a library's process belongs to the caller. Signals that `catch_signals`
    collects within are left to it. Afterwards little but the interpreter's own end is left of the process: one that was
    answered is ignored, so that it changes no exit code, and others end the process silently.

    Args:
        exit_message: returns the line to print to stderr.
    """
    for number in filter(_has_default_handler, STOPPING):
        signal.signal(number, signal.SIG_DFL)
    handler = _Ending(exit_message, threading.Lock(), {})

    def call_handler(number: int) -> None:
        current = signal.getsignal(number)
        if isinstance(current, _Ending):
            current(number)

    try:
        with _handlers(dict.fromkeys(_caught_stops(), handler)), _following(call_handler):
            yield
    finally:
        for number in handler.answered:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def say_at_once(exit_message: Callable[[], str]) -> Iterator[None]:
    """Replaces the line that `end_at_once` prints; does nothing outside it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    with _handlers({n: h._replace(exit_message=exit_message) for n, h in handlers.items() if isinstance(h, _Ending)}):
        yield


@contextlib.contextmanager
def ignore_save_requests() -> Iterator[None]:
    """Ignores SIGUSR1 and SIGQUIT before and after the rounds, when there is nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handlers({s: _nothing_to_save for s in SAVING if _has_default_handler(s)}):
        yield


def _nothing_to_save(number: int, frame) -> None:
    """The handler of `ignore_save_requests`."""


def take_save_requests(requests: Requests) -> list[str]:
    """Returns the names of the signals that request a checkpoint, and removes them from the requests."""
    taken = list(requests.save)
    del requests.save[: len(taken)]
    return taken


@contextlib.contextmanager
def delay_save_requests() -> Iterator[None]:
    """Delays SIGUSR1 and SIGQUIT, also in processes that are started within, until they `accept_save_requests`.

    They would end a process that has no handler yet.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SAVING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def accept_save_requests() -> None:
    """Ends the delay of `delay_save_requests` in a process that was started within. It has nothing to save yet."""
    for number in filter(_has_default_handler, SAVING):
        signal.signal(number, _nothing_to_save)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SAVING)


def _has_default_handler(number: signal.Signals) -> bool:
    """Returns whether the signal is neither handled nor ignored by other code."""
    handler = signal.getsignal(number)
    return handler in (signal.SIG_DFL, signal.default_int_handler, _nothing_to_save) or isinstance(handler, _Ending)


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Callable]) -> Iterator[None]:
    replaced = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _duplicate_filter() -> Callable[[int], bool]:
    """Returns a function of signals: whether an equal one counted less than `MERGED` seconds before."""
    counted: dict[int, float] = {}

    def is_duplicate(number: int) -> bool:
        now = time.monotonic()
        if now - counted.get(number, -MERGED) < MERGED:
            return True
        counted[number] = now
        return False

    return is_duplicate


def _is_second_request(stops: Sequence[int]) -> bool:
    """Returns whether the signals request to stop for the second time."""
    return len([number for number in stops if number not in REPEATED]) > 1


@contextlib.contextmanager
def watch(
    exit_message: Callable[[], str] | None, grace: float = GRACE, is_saved: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Ends the process at a second stop signal, or when the first has had no effect after `grace` seconds.

    Args:
        exit_message: returns the line to print to stderr before the process ends. None: nothing is watched, because the
            process belongs to the caller.
        grace: seconds.
        is_saved: returns whether no finished round would be lost; until then the first signal does not end the process.
    """
    if exit_message is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    stops, is_over, is_duplicate = [], threading.Event(), _duplicate_filter()

    def end(number: int) -> None:
        if not is_over.is_set():
            _end_process(number, exit_message)

    def end_when_saved(number: int) -> None:
        is_over.wait(grace)
        while not is_saved() and not is_over.wait(POLL_SECONDS):
            pass
        end(number)

    def on_stop(number: int) -> None:
        if is_duplicate(number):
            return
        stops.append(number)
        if _is_second_request(stops):
            end(number)
        elif len(stops) == 1:
            threading.Thread(target=end_when_saved, args=(number,), daemon=True).start()

    with _following(on_stop):
        try:
            yield
        finally:
            is_over.set()


@contextlib.contextmanager
def _following(on_stop: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_stop` in a thread with the number of every stop signal, also while the main thread is busy."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    replaced = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def follow() -> None:
        while number := os.read(reading, 1):  # nothing when the pipe is closed
            if number[0] in STOPPING:
                on_stop(number[0])

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(replaced)
        os.close(writing)
        thread.join()
        os.close(reading)


def _end_process(number: int, exit_message: Callable[[], str]) -> None:
    """Ends the process with the exit code of a signal."""
    with contextlib.suppress(Exception):  # the terminal may be closed, and the run folder removed
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        os.write(2, f"{exit_message()}\n".encode())
    os._exit(128 + number)
