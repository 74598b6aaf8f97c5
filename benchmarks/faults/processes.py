"""Runs functions in forked processes, which can be killed. The parent must not have started threads of jax."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def run_forked(work: Callable[[], int]) -> int:
    """Runs `work` in a forked process; returns its exit code, or minus the signal that ended it."""
    return wait_or_kill(start(work))


def start(work: Callable[[], int]) -> int:
    """Forks a process that runs `work`, and returns its id."""
    child = os.fork()
    if not child:
        code = 7
        try:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            code = work()
        finally:
            os._exit(code)
    return child


def wait_or_kill(child: int, seconds: float = float("inf"), begins: Callable[[], bool] = lambda: True) -> int:
    """Waits for a process, and kills it `seconds` after `begins` is first true; returns its exit code."""
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
