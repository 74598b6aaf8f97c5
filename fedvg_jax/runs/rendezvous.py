"""The processes of a run find each other at the address of process 0, before jax connects them there.

Process 0 listens at that address only and accepts one connection from each other process. When all are there it answers
them and closes, and jax listens at the same address. jax alone would listen on all interfaces, share the port with
another run, and let a second process with a number replace the first.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError

PATIENCE = 5.0
"""Seconds after which a process says for whom it waits."""

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_WELCOME, _REFUSAL = b"fedvg_jax welcome", b"fedvg_jax refusal"
_T = TypeVar("_T")


def split_address(text: str) -> tuple[str, int] | None:
    """Returns host and port of HOST:PORT, None if it is malformed. An IPv6 address needs brackets.

    >>> split_address("node-0.lab:9911"), split_address("[::1]:9911"), split_address("::1:9911")
    (('node-0.lab', 9911), ('::1', 9911), None)
    """
    match = _ADDRESS.fullmatch(text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 2**16 else None


def meet(where: str, count: int, index: int, seconds: float) -> str | None:
    """Waits for the other processes of a run.

    Args:
        where: HOST:PORT of process 0.
        count: number of processes.
        index: number of this process.
        seconds: to wait.

    Returns:
        The numeric address at which jax has to listen in process 0; None in the others.

    Raises:
        UsageError: the port is in use, the number is taken, or a process is missing after these seconds.
    """
    where = (index == 0 and os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")) or where
    address, greeting = split_address(where), _greeting(index, count)
    if address is None:
        raise UsageError(f"JAX_COORDINATOR_BIND_ADDRESS must be HOST:PORT, got {where}")
    if index == 0:
        return _collect(where, address, count, seconds)
    waiting = f"process {index} waits for process 0 at {where}"
    answer = _wait_for(lambda: _ask(address, greeting, seconds), lambda: waiting, seconds)
    if answer != _WELCOME:
        taken = "is taken, or process 0 has another --processes"
        late = "is one too many: the run on this port is complete"
        reason = taken if answer == _REFUSAL else late
        remedy = "give every process its own --process, or choose another port"
        raise UsageError(f"distributed {where}: process {index} of {count} {reason}; {remedy}")
    return None


def _greeting(index: int, count: int) -> bytes:
    return b"fedvg_jax process %d of %d" % (index, count)


def _collect(where: str, address: tuple[str, int], count: int, seconds: float) -> str:
    """Accepts the other processes in process 0; returns the numeric address."""
    server = _wait_for(lambda: _listen(address), lambda: f"process 0 waits for an address of {where}", seconds)
    host, port = server.getsockname()[:2]
    numeric = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    at = where if numeric == where else f"{where} ({host})"  # a machine's own name may be a loopback address
    joined: dict[bytes, socket.socket] = {}

    def waiting() -> str:
        missing = [str(index) for index in range(1, count) if _greeting(index, count) not in joined]
        return f"process 0 waits at {at} for process{'es' * (len(missing) > 1)} {', '.join(missing)}"

    with contextlib.ExitStack() as stack:
        with server:
            _wait_for(lambda: _accept(server, joined, count, stack), waiting, seconds)
        for connection in joined.values():
            with contextlib.suppress(OSError):
                connection.sendall(_WELCOME)
    return numeric


def _listen(address: tuple[str, int]) -> socket.socket | None:
    """Returns a socket that listens at an address; None while its name is unknown, as that of a new pod may be."""
    try:
        family, _, _, _, numeric = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        server = socket.create_server(numeric[:2], family=family)
    except (socket.gaierror, UnicodeError):
        return None
    except OSError as error:
        at, reason = "{}:{}".format(*address), files.reason(error)
        raise UsageError(f"distributed {at}: {reason}; choose a free port of process 0's own machine") from None
    server.settimeout(0.5)
    return server


def _accept(
    server: socket.socket, joined: dict[bytes, socket.socket], count: int, stack: contextlib.ExitStack
) -> bool | None:
    """Adds the next process to those that have joined, by greeting; returns True when all are there, else None."""
    for greeting, connection in list(joined.items()):
        if select.select([connection], [], [], 0)[0]:  # it sends nothing more, so it has ended
            del joined[greeting]
    if len(joined) == count - 1:
        return True
    with contextlib.suppress(OSError):
        connection = stack.enter_context(server.accept()[0])
        connection.settimeout(2.0)
        greeting = connection.recv(64)
        if greeting in [_greeting(index, count) for index in range(1, count)] and greeting not in joined:
            joined[greeting] = connection
        else:
            connection.sendall(_REFUSAL)
            connection.close()
    return None


def _ask(address: tuple[str, int], greeting: bytes, seconds: float) -> bytes | None:
    """Returns the answer of process 0 to another process, when all are there; None if there is none."""
    with contextlib.suppress(OSError, UnicodeError), socket.create_connection(address, timeout=2.0) as connection:
        connection.sendall(greeting)
        connection.settimeout(seconds)
        return connection.recv(64) or None
    return None


def _wait_for(attempt: Callable[[], _T | None], waiting: Callable[[], str], seconds: float) -> _T:
    """Returns the first result of an attempt that is not None.

    Args:
        attempt: called again and again.
        waiting: returns the line to print after `PATIENCE`.
        seconds: to wait.

    Raises:
        UsageError: there is none after these seconds.
    """
    start, is_printed = time.monotonic(), False
    while (result := attempt()) is None:
        waited = time.monotonic() - start
        if waited > PATIENCE and not is_printed:
            print(f"{waiting()}, for up to {seconds:.0f} s", file=sys.stderr, flush=True)
            is_printed = True
        if waited > seconds:
            raise UsageError(f"{waiting()}, in vain for {seconds:.0f} s; start all processes, and check the address")
        time.sleep(0.05)
    return result
