"""Signals during a run: some end it after a checkpoint, others request a checkpoint only.

SIGINT (Ctrl-C), SIGTERM (a scheduler) and SIGHUP (a lost terminal) end the run: the loop finishes its chunk of rounds,
saves, and returns. SIGUSR1 (a scheduler's early warning) and SIGQUIT save a checkpoint, and the run continues. Before
and after the rounds, signals have their usual effect.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = (signal.SIGUSR1, signal.SIGQUIT)
ALWAYS_CAUGHT = (signal.SIGINT, signal.SIGTERM)
"""Other signals keep a handler that is not the default: nohup ignores SIGHUP, and a caller may use SIGUSR1."""


class Requests(NamedTuple):
    """Names of signals that were received and not yet answered."""

    stop: list[str]
    save: list[str]


def exit_code(name: str) -> int:
    """Returns 128 + the signal's number, as shells do: 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def catch_signals() -> Iterator[Requests]:
    """Collects signals in place of their usual effect, which a second SIGINT or SIGTERM has again.

    Python calls a handler when the main thread returns from the device, so at the end of a chunk of rounds. No-op
    outside the main thread, where Python cannot install handlers.
    """
    requests = Requests([], [])
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    default = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in (*STOPPING, *SAVING)}
    usual = {number: handler for number, handler in handlers.items() if number in ALWAYS_CAUGHT or handler in default}

    def receive(number: int, frame=None) -> None:
        name = signal.Signals(number).name
        if number in SAVING:
            requests.save.append(name)
            return
        requests.stop.append(name)
        for again in ALWAYS_CAUGHT:  # no second SIGHUP: shells and the kernel send it more than once
            signal.signal(again, usual[again])

    for number in usual:
        signal.signal(number, receive)
    try:
        yield requests
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


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
