"""Signals during a run: some end it after a checkpoint, others request a checkpoint only.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and returns. SIGUSR1 (a scheduler's early warning) and SIGQUIT save a checkpoint, and the run continues.

Python runs a handler only after the main thread has returned from the device, and an exception that a handler raises is
lost where jax calls back into Python. In the process of a command line, `end_at_once` therefore has a thread that
receives every signal at once and can end the process. A library's process belongs to the caller: its signals are
handled while rounds are computed only.
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


class _Receiver:
    """Receives the signals of a process.

    Attributes:
        exit_message: Returns the line to print to stderr at a signal that ends the process; None for a library's.
        requests: To the rounds under way; None before and after them.
        is_saved: Returns whether no finished round would be lost; until then a first signal does not end the process.
        counted: Signal -> when it was counted last.
    """

    def __init__(self, exit_message: Callable[[], str] | None = None) -> None:
        self.exit_message = exit_message
        self.requests: Requests | None = None
        self.is_saved: Callable[[], bool] = lambda: True
        self.counted: dict[int, float] = {}

    def receive(self, number: int, frame=None) -> None:
        """Collects a request, or ends the process: it is the second request to stop, or there are no rounds."""
        now, requests, name = time.monotonic(), self.requests, signal.Signals(number).name
        is_hangup = number == signal.SIGHUP  # sent by the shell and the kernel when a terminal closes: never a second
        if now - self.counted.get(number, -MERGED) < MERGED or (is_hangup and number in self.counted):
            return
        self.counted[number] = now
        if number in SAVING:
            if requests:
                requests.save.append(name)
        elif requests is None or (not is_hangup and {*requests.stop} - {"SIGHUP"}):
            self.end(number)
        else:
            requests.stop.append(name)
            if self.exit_message and len(requests.stop) == 1:
                threading.Thread(target=self._end_when_saved, args=(number, requests), daemon=True).start()

    def _end_when_saved(self, number: int, requests: Requests) -> None:
        """Ends the process unless the rounds end within `GRACE` seconds, or before all finished ones are saved."""
        latest = time.monotonic() + GRACE
        while self.requests is requests:
            if time.monotonic() > latest and self.is_saved():
                self.end(number)
            time.sleep(POLL_SECONDS)

    def end(self, number: int) -> None:
        """Ends a command's process with the exit code of a signal; interrupts the main thread of a library's."""
        if self.exit_message is None:
            raise KeyboardInterrupt
        with contextlib.suppress(Exception):  # the terminal may be closed, and the run folder removed
            if os.isatty(1):
                os.write(1, SHOW_CURSOR)
            os.write(2, f"{self.exit_message()}\n".encode())
        os._exit(128 + number)


_commands: list[_Receiver] = []
"""The receiver of `end_at_once`; none in a library's process."""


@contextlib.contextmanager
def end_at_once(exit_message: Callable[[], str]) -> Iterator[None]:
    """Ends the process at the first stop signal, with one line and the exit code of the signal.

    For the process of a command line only: a library's process belongs to the caller. Rounds within `catch_signals` may
    end first. Afterwards little but the interpreter's own end is left of the process: a signal that was answered is
    ignored, so that it changes no exit code, and others end the process silently.

    Args:
        exit_message: returns the line to print to stderr.
    """
    receiver, caught = _Receiver(exit_message), _caught()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def follow() -> None:
        while number := os.read(reading, 1):  # nothing when the pipe is closed
            if number[0] in caught:
                receiver.receive(number[0])

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    replaced = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in caught:  # Python writes the numbers of signals with a handler to the pipe
        signal.signal(number, lambda number, frame: None)
    _commands.append(receiver)
    try:
        yield
    finally:
        _commands.clear()
        signal.set_wakeup_fd(replaced)
        os.close(writing)
        thread.join()
        os.close(reading)
        for number in caught:
            is_answered = number in SAVING or number in receiver.counted
            signal.signal(number, signal.SIG_IGN if is_answered else signal.SIG_DFL)


@contextlib.contextmanager
def say_at_once(exit_message: Callable[[], str]) -> Iterator[None]:
    """Replaces the line that `end_at_once` prints; does nothing outside it."""
    receiver = _commands[0] if _commands else _Receiver()
    replaced, receiver.exit_message = receiver.exit_message, exit_message
    try:
        yield
    finally:
        receiver.exit_message = replaced


@contextlib.contextmanager
def catch_signals(is_saved: Callable[[], bool] = lambda: True) -> Iterator[Requests]:
    """Collects signals in place of their usual effect.

    A second SIGINT or SIGTERM ends the process of a command, and so does the first one that has had no effect after
    `GRACE` seconds. In a library's process the second raises KeyboardInterrupt. No-op outside the main thread, where
    Python cannot install signal handlers.

    Args:
        is_saved: returns whether no finished round would be lost; until then the first signal does not end the process.
    """
    requests = Requests([], [])
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    receiver = _commands[0] if _commands else _Receiver()
    handlers = {} if _commands else {number: signal.signal(number, receiver.receive) for number in _caught()}
    receiver.is_saved, receiver.requests = is_saved, requests
    try:
        yield requests
    finally:
        receiver.requests = None
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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


def take_save_requests(requests: Requests) -> list[str]:
    """Returns the names of the signals that request a checkpoint, and removes them from the requests."""
    taken = list(requests.save)
    del requests.save[: len(taken)]
    return taken


def _caught() -> list[signal.Signals]:
    """Returns the signals to catch: the others are ignored, or handled by other code."""
    default = (signal.SIG_DFL, signal.default_int_handler)
    return [n for n in (*STOPPING, *SAVING) if n in ALWAYS_CAUGHT or signal.getsignal(n) in default]
