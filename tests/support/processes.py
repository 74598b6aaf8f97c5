"""Processes that tests start and send signals to."""

import signal
import subprocess
from contextlib import contextmanager


@contextmanager
def default_signals():
    """Gives every ignored signal its default effect within, here and in processes started within.

    nohup starts the tests with SIGHUP ignored, a shell its background jobs with SIGINT and SIGQUIT ignored, and
    processes inherit that.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    try:
        for number in ignored:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


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
