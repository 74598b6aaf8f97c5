"""Processes that tests start and send signals to."""

import signal
import subprocess
from contextlib import contextmanager


@contextmanager
def default_signals():
    """Gives every signal that ends a run Python's default effect within, here and in processes started within.

    nohup starts the tests with SIGHUP ignored, a shell its background jobs with SIGINT and SIGQUIT ignored, and
    processes inherit that; a command that ran in this process has given SIGINT the system's effect.
    """
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        for number in handlers:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def started(command, **options):
    """Starts a process with default signals, and kills it at the end if it still runs."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with default_signals():
        process = subprocess.Popen(command, **pipes | options)
    with process:
        try:
            yield process
        finally:
            process.kill()
