"""Joins the processes of one run through `jax.distributed`, and ends this process when another one is lost.

Process 0 listens at the given address only; jax alone would listen on all interfaces. A process counts as lost when a
collective fails, or when its heartbeats stop for `HEARTBEAT` seconds: then jax ends this process with a stack trace.
The run continues from its newest checkpoint in new processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from fedvg_jax.host import hardware
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


def join(launch: Launch) -> None:
    """Connects this process to the others; afterwards `jax.devices()` are those of all processes.

    Raises:
        UsageError: the processes do not find each other, or they have different numbers of devices.
    """
    flag = f"--xla_cpu_collective_call_terminate_timeout_seconds={COLLECTIVE}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.setdefault("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it would replace the handler of SIGTERM
    is_auto = launch.coordinator == "auto"
    try:
        jax.distributed.initialize(
            None if is_auto else launch.coordinator,
            launch.count,
            launch.index,
            cluster_detection_method=None if is_auto else "deactivate",
            initialization_timeout=CONNECTING,
            heartbeat_timeout_seconds=HEARTBEAT,
            coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
            or (None if is_auto else launch.coordinator),
        )
    except (ValueError, RuntimeError) as error:
        raise UsageError(_reason(launch, error)) from None
    if hardware.current().is_cpu:
        # with jax 0.10.2 a program from the cache in one process and a compiled one in another waited for each other
        jax.config.update("jax_enable_compilation_cache", False)
    if jax.device_count() != jax.process_count() * jax.local_device_count():
        raise UsageError(
            f"process {jax.process_index()} has {jax.local_device_count()} devices of {jax.device_count()} in"
            f" {jax.process_count()} processes; start processes with equal numbers of devices"
        )


def split_address(text: str) -> tuple[str, int] | None:
    """Returns host and port of HOST:PORT, None if it is malformed. An IPv6 address needs brackets.

    >>> split_address("node-0.lab:9911"), split_address("[::1]:9911"), split_address("::1:9911")
    (('node-0.lab', 9911), ('::1', 9911), None)
    """
    match = _ADDRESS.fullmatch(text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 2**16 else None


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

    join(launch)
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
