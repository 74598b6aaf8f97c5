"""Runs work in forked processes, which may be killed. The parent must not have started threads of jax."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def forked(work: Callable[[], int]) -> int:
    """Returns the exit code of `work` in a forked process, or minus the number of the signal that ended it."""
    return waited(start(work))


def start(work: Callable[[], int]) -> int:
    """Forks a process that only does `work`, and returns its id."""
    child = os.fork()
    if not child:
        code = 7
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            code = work()
        finally:
            os._exit(code)
    return child


def waited(child: int, seconds: float = float("inf"), begins: Callable[[], bool] = lambda: True) -> int:
    """Returns the exit code of a process, which is killed `seconds` after `begins` is first true."""
    start_time = None
    while start_time is None or time.monotonic() - start_time < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if start_time is None and begins():
            start_time = time.monotonic()
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
