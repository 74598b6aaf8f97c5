"""Asked to stop: Ctrl-C (SIGINT) and a scheduler's SIGTERM.

The first signal is only noted: the loop ends its chunk of rounds, saves, and leaves. Python hears a signal once the
main thread is back from the device; a watch, on a thread of its own, hears it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

GRACE = 10.0
"""Seconds the watch gives a chunk to end; schedulers commonly kill 30 seconds after SIGTERM."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_code(name: str) -> int:
    """128 + the signal's number, as shells have it: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signal.Signals[name]


@contextlib.contextmanager
def noted(farewell: Callable[[], str] | None = None, grace: float = GRACE) -> Iterator[list[str]]:
    """The names of the signals heard so far; at a second one, KeyboardInterrupt.

    Outside the main thread, where Python lets no one listen, nothing is noted.

    Args:
        farewell: where the process is ours to end, the line to leave with: a watch then ends it at a second signal, or
            when the first has had no effect after `grace` seconds.
    """
    heard: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def note(number: int, frame) -> None:
        heard.append(signal.Signals(number).name)
        if len(heard) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        with _watched(farewell, grace) if farewell else contextlib.nullcontext():
            yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _watched(farewell: Callable[[], str], grace: float) -> Iterator[None]:
    """The interpreter writes the number of every signal it catches to a pipe; a thread reads it there."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    over = threading.Event()

    def next_signal() -> int:
        """Its number; 0 when the watch is over."""
        while number := os.read(reading, 1):
            if number[0] in SIGNALS:
                return number[0]
        return 0

    def leave(number: int) -> None:
        if not over.is_set():
            os.write(2, f"{farewell()}\n".encode())
            os._exit(128 + number)

    def watch() -> None:
        if first := next_signal():
            timer = threading.Timer(grace, leave, [first])
            timer.daemon = True
            timer.start()
            if second := next_signal():
                leave(second)
            timer.cancel()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)
