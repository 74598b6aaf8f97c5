"""Signals during a run: some end it after a checkpoint, some ask for a checkpoint only.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and leaves. SIGUSR1 (a scheduler's early warning) and SIGQUIT save a checkpoint, and the run goes on.

Python runs a handler only once the main thread is back from the device. A watch on a thread of its own sees the signal
at once, and can end the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

GRACE = 10.0
"""Seconds the watch gives a chunk to end; schedulers commonly kill 30 seconds after SIGTERM."""


def _existing(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of this platform among the names."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


STOPPING = _existing("SIGINT", "SIGTERM", "SIGHUP")
SAVING = _existing("SIGUSR1", "SIGQUIT")
ALWAYS_CAUGHT = _existing("SIGINT", "SIGTERM")
"""Of the others, those with another handler keep it: under nohup SIGHUP is ignored, and a caller may use SIGUSR1."""

REPEATED = _existing("SIGHUP")
"""Shells and the kernel both send it when a terminal closes, so a second signal of this kind ends nothing early."""


class Requests(NamedTuple):
    """Signals received and not yet answered, by name."""

    stop: list[str]
    save: list[str]


def exit_code(name: str) -> int:
    """128 + the signal's number, as shells have it: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def catch_signals() -> Iterator[Requests]:
    """Collects signals in place of their usual effect.

    A second SIGINT or SIGTERM raises KeyboardInterrupt. No-op outside the main thread, where Python cannot install
    signal handlers.
    """
    requests = Requests([], [])
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def handle(number: int, frame) -> None:
        name = signal.Signals(number).name
        if number in SAVING:
            requests.save.append(name)
            return
        requests.stop.append(name)
        if _is_urgent([signal.Signals[name] for name in requests.stop]):
            raise KeyboardInterrupt

    caught = [*ALWAYS_CAUGHT, *(s for s in (*STOPPING, *SAVING) if s not in ALWAYS_CAUGHT and _is_free(s))]
    with _handlers(dict.fromkeys(caught, handle)):
        yield requests


@contextlib.contextmanager
def ignore_save_requests() -> Iterator[None]:
    """Keeps SIGUSR1 and SIGQUIT from ending a process that has no rounds to save yet, or no more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handlers({s: _nothing_to_save for s in SAVING if _is_free(s)}):
        yield


def _nothing_to_save(number: int, frame) -> None:
    """The handler of `ignore_save_requests`."""


def _is_free(number: signal.Signals) -> bool:
    """Whether nobody else handles or ignores the signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, _nothing_to_save)


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Callable]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _is_urgent(stops: Sequence[signal.Signals]) -> bool:
    """Whether the process is asked to stop for the second time."""
    return len([number for number in stops if number not in REPEATED]) > 1


@contextlib.contextmanager
def watch(farewell: Callable[[], str] | None, grace: float = GRACE) -> Iterator[None]:
    """Ends the process at a second stop signal, or when the first has had no effect after `grace` seconds.

    Args:
        farewell: returns the line to leave with; None where the process is not ours to end: nothing is watched.
    """
    if farewell is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    # the interpreter writes the number of every signal it catches to this pipe
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    over = threading.Event()

    def next_stop() -> int:
        """Number of the next stop signal; 0 when the watch is over."""
        while number := os.read(reading, 1):
            if number[0] in STOPPING:
                return number[0]
        return 0

    def leave(number: int) -> None:
        if not over.is_set():
            with contextlib.suppress(Exception):  # a closed stderr, a run folder that is gone
                os.write(2, f"{farewell()}\n".encode())
            os._exit(128 + number)

    def follow() -> None:
        stops, timer = [], None
        while number := next_stop():
            stops.append(signal.Signals(number))
            if _is_urgent(stops):
                leave(number)
            if timer is None:
                timer = threading.Timer(grace, leave, [number])
                timer.daemon = True
                timer.start()
        if timer is not None:
            timer.cancel()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
