"""Joins the processes of one run through `jax.distributed`, and ends this process when another one is lost.

Process 0 listens at the given address only; jax alone would listen on all interfaces and share the port with another
run. A process that is missing ends the others, which jax reports with a stack trace above the line that says so; a
second process with a number replaces the first.

A process counts as lost when it ends without the others, or when its heartbeats stop for `HEARTBEAT` seconds: it was
killed or stopped, or its host or network failed. Then no collective can complete, and the run continues from its newest
checkpoint in new processes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from fedvg_jax.host import files, hardware
from fedvg_jax.host.errors import UsageError, one_line

HEARTBEAT = 30
"""Seconds without a heartbeat after which a process counts as lost."""

CONNECTING = 300
"""Seconds that the processes have to start and find each other."""

COLLECTIVE = 24 * 3600
"""Seconds that a CPU device waits for the others in a collective. XLA's default of 40 ends a process whose devices have
unequal work."""

LOST = 3
"""Exit code when another process was lost."""

PATIENCE = 5.0
"""Seconds after which a process says that it waits."""

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

FLAGS = ("distributed", "processes", "process")
"""Options of the command line that start several processes; they are no settings of a run."""


HELP = """Several processes:
  --distributed HOST:PORT|auto
                        Run in several processes, which share the clients of
                        every round. Start each with the same command.
                        HOST:PORT is an address of process 0, which listens
                        there: use a trusted network only. auto detects Slurm,
                        Open MPI or Kubernetes.
  --processes INT       Number of processes. Default: $JAX_NUM_PROCESSES.
  --process INT         Number of this process, from 0. Default:
                        $JAX_PROCESS_ID."""
"""Entry of the options in `FLAGS` in `--help-all`."""


class Launch(NamedTuple):
    """How the processes of a run find each other."""

    coordinator: str
    """HOST:PORT of process 0, or "auto": jax detects the cluster."""
    count: int | None = None
    """processes; None: `JAX_NUM_PROCESSES`, or as detected"""
    index: int | None = None
    """number of this process, from 0; None: `JAX_PROCESS_ID`, or as detected"""


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the options of a command line that are in `FLAGS`, and its other words.

    Raises:
        UsageError: an option has no value.

    >>> split(["--lr", "0.1", "--distributed", "auto"])
    ({'distributed': 'auto'}, ['--lr', '0.1'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in FLAGS:
        parser.add_argument(f"--{name}")
    try:
        options, others = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error.argument_name} needs a value; see --help-all") from None
    return {name: value for name, value in vars(options).items() if value is not None}, others


def parse(values: dict[str, str]) -> Launch | None:
    """Returns the launch that the options in `FLAGS` describe; None without `distributed`.

    Raises:
        UsageError: a value is malformed, or the other options are given alone.

    >>> parse({"distributed": "localhost:9911", "processes": "2", "process": "0"})
    Launch(coordinator='localhost:9911', count=2, index=0)
    """
    if "distributed" not in values:
        if values:
            raise UsageError(f"--{min(values)} needs --distributed HOST:PORT; add it, or leave this out")
        return None
    where = values["distributed"]
    if where != "auto" and split_address(where) is None:
        raise UsageError(f"distributed must be auto or HOST:PORT of process 0, got {where}")
    count = _number("processes", values.get("processes") or os.environ.get("JAX_NUM_PROCESSES"), 1)
    index = _number("process", values.get("process") or os.environ.get("JAX_PROCESS_ID"), 0)
    if where != "auto" and (count is None or index is None):
        raise UsageError(
            f"distributed {where} needs --processes and --process (or JAX_NUM_PROCESSES and JAX_PROCESS_ID) in every"
            " process; give both, or use --distributed auto"
        )
    if count is not None and index is not None and index >= count:
        raise UsageError(f"process must be 0..{count - 1} of {count} processes, got {index}")
    return Launch(where, count, index)


def _number(name: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 2**16):
        raise UsageError(f"{name} must be a whole number from {least} to {2**16 - 1}, got {text}")
    return int(text)


def join(launch: Launch, lost_message: Callable[[], str]) -> None:
    """Connects this process to the others; afterwards `jax.devices()` are those of all processes.

    Args:
        launch: how the processes find each other.
        lost_message: returns the line to print when another process was lost.

    Raises:
        UsageError: the processes do not find each other, the port is in use, or they have different numbers of devices.
    """
    flag = f"--xla_cpu_collective_call_terminate_timeout_seconds={COLLECTIVE}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.setdefault("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it would replace the handler of SIGTERM
    is_auto, has_joined, bound = launch.coordinator == "auto", [], None
    if not is_auto and launch.index == 0:
        where = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or launch.coordinator
        bound = listening_address(where, CONNECTING)
    missing = f"not all processes met at {launch.coordinator} in {CONNECTING} s; start all, each with its own number"
    _catch_abort(lambda: _end(lost_message(), LOST) if has_joined else _end(missing, 2))
    waiting = f"waiting for the other processes at {launch.coordinator}, for up to {CONNECTING} s"
    notice = threading.Timer(PATIENCE, print, [waiting], {"file": sys.stderr, "flush": True})
    notice.start()
    try:
        jax.distributed.initialize(
            None if is_auto else launch.coordinator,
            launch.count,
            launch.index,
            cluster_detection_method=None if is_auto else "deactivate",
            initialization_timeout=CONNECTING,
            heartbeat_timeout_seconds=HEARTBEAT,
            coordinator_bind_address=bound,
        )
    except (ValueError, RuntimeError) as error:
        raise UsageError(_reason(launch, error)) from None
    finally:
        notice.cancel()
    has_joined.append(True)
    if hardware.current().is_cpu:
        # with jax 0.10.2 a program from the cache in one process and a compiled one in another waited for each other
        jax.config.update("jax_enable_compilation_cache", False)
    if jax.device_count() != jax.process_count() * jax.local_device_count():
        raise UsageError(
            f"process {jax.process_index()} has {jax.local_device_count()} devices of {jax.device_count()} in"
            f" {jax.process_count()} processes; start processes with equal numbers of devices"
        )


# --- how processes find each other


def split_address(text: str) -> tuple[str, int] | None:
    """Returns host and port of HOST:PORT, None if it is malformed. An IPv6 address needs brackets.

    >>> split_address("node-0.lab:9911"), split_address("[::1]:9911"), split_address("::1:9911")
    (('node-0.lab', 9911), ('::1', 9911), None)
    """
    match = _ADDRESS.fullmatch(text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 2**16 else None


def listening_address(where: str, seconds: float) -> str:
    """Returns the numeric address at which process 0 listens.

    Args:
        where: HOST:PORT; the name of a new pod may be unknown at first.
        seconds: to wait for the name.

    Raises:
        UsageError: the name is unknown, is another machine's, or the port is in use.
    """
    address, start = split_address(where), time.monotonic()
    if address is None:
        raise UsageError(f"JAX_COORDINATOR_BIND_ADDRESS must be HOST:PORT, got {where}")
    while True:
        try:
            family, _, _, _, numeric = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            socket.create_server(numeric[:2], family=family).close()  # jax would share the port with another run
            return f"[{numeric[0]}]:{address[1]}" if ":" in str(numeric[0]) else f"{numeric[0]}:{address[1]}"
        except (socket.gaierror, UnicodeError) as error:
            if time.monotonic() - start > seconds:
                raise UsageError(f"distributed {where}: {files.reason(error)}; check the address") from None
            time.sleep(0.1)
        except OSError as error:
            reason = f"{files.reason(error)}; choose a free port of process 0's own machine"
            raise UsageError(f"distributed {where}: {reason}") from None


# --- a run


def _reason(launch: Launch, error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    if launch.coordinator == "auto":
        return (
            f"distributed auto finds no cluster ({text}); start it with srun, mpirun or an Indexed Job, or give"
            " --distributed HOST:PORT --processes N --process I"
        )
    return f"distributed {launch.coordinator}: the processes do not find each other ({text}); check the address"


def run(launch: Launch, command: Callable[[], int], lost_message: Callable[[], str]) -> int:
    """Joins the processes, runs a command in each, and returns its exit code.

    Only process 0 reports an error that all processes raise. An error of this process alone ends it at once, and the
    others end because it is lost.

    Args:
        launch: how the processes find each other.
        command: returns its own exit code; its UsageErrors are raised by all processes.
        lost_message: returns the line to print when another process was lost.
    """
    import jax

    join(launch, lost_message)
    from fedvg_jax.host import processes

    try:
        code = command()
    except UsageError as error:
        if processes.is_first():
            print(f"error: {error}", file=sys.stderr, flush=True)  # before the wait for processes that may hang
        jax.distributed.shutdown()
        return getattr(error, "exit_code", 2)
    except Exception as error:
        if processes.is_loss(error):
            _end(lost_message(), LOST)
        traceback.print_exc()
        _end(f"process {jax.process_index()} failed: {one_line(str(error))[:300]}", 1)
    jax.distributed.shutdown()
    return code


def _end(line: str, code: int) -> NoReturn:
    """Ends the process at once: a usual exit would wait for the other processes."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(2, f"{line}\n".encode())
    os._exit(code)


_handlers: list[Any] = []
"""C functions that must outlive the process's signal handlers."""


def _catch_abort(end: Callable[[], None]) -> None:
    """Calls `end` in place of an abort. XLA aborts the process, from a thread of its own, when heartbeats stop."""
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: end())
    _handlers.append(handler)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
