"""Work in processes of their own, which may be killed. Nothing here may have started a thread of jax's before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def forked(work: Callable[[], int]) -> int:
    """The exit code of `work` in a process of its own, or minus the signal it died of."""
    return waited(start(work))


def start(work: Callable[[], int]) -> int:
    """The number of a process that does `work` and nothing else."""
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
    """The exit code of a process, killed so many seconds after something begins."""
    begun = None
    while begun is None or time.monotonic() - begun < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if begun is None and begins():
            begun = time.monotonic()
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
