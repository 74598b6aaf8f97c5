"""Joins the processes of one run through `jax.distributed`, and ends this process when another one is lost.

Process 0 listens at this address only; jax alone would listen on all interfaces. A process counts as lost when a
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

from fedvg_jax.host import files, hardware
from fedvg_jax.host.errors import UsageError, one_line

HEARTBEAT = 30
"""Seconds without a heartbeat after which a process counts as lost."""

CONNECTING = 300
"""Seconds that the processes have to start and find each other."""

COLLECTIVE = 24 * 3600
"""Seconds that a CPU device waits for the others in a collective. XLA's default of 40 ends a process if its devices
have unequal work."""

ADDRESS = re.compile(r"(?:\[[\da-fA-F:.]+\]|[\w.-]+):(\d{1,5})")
"""HOST:PORT; the host is a name or an address, in brackets with IPv6."""

LOST = 3
"""Exit code when another process was lost."""

LOST_MESSAGE = "another process of the run was lost; start all processes again with the same command and --resume auto"

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
"""Entry of these options in `--help`; they are no settings of a run."""


class Launch(NamedTuple):
    """How the processes of a run find each other."""

    coordinator: str
    """HOST:PORT of process 0, or "auto": jax detects the cluster."""
    count: int | None = None
    """processes; None: `JAX_NUM_PROCESSES`, or as detected"""
    index: int | None = None
    """number of this process, from 0; None: `JAX_PROCESS_ID`, or as detected"""


def read(words: Sequence[str]) -> tuple[Launch | None, list[str]]:
    """Returns how the processes of a command line find each other, None for a single one, and its other words.

    Raises:
        UsageError: an option is malformed, or the others stand without `--distributed`.

    >>> read(["--lr", "0.1", "--distributed", "localhost:9911", "--processes", "2", "--process", "0"])
    (Launch(coordinator='localhost:9911', count=2, index=0), ['--lr', '0.1'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--distributed")
    parser.add_argument("--processes", type=int, default=os.environ.get("JAX_NUM_PROCESSES"))
    parser.add_argument("--process", type=int, default=os.environ.get("JAX_PROCESS_ID"))
    try:
        options, others = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}; see --help") from None
    where = options.distributed
    if where is None:
        if len(others) < len(words):
            raise UsageError(
                "--process and --processes need --distributed HOST:PORT; add it, or leave them out"
            )
        return None, others
    address = ADDRESS.fullmatch(where)
    if where != "auto" and not (address and 0 < int(address[1]) < 2**16):
        raise UsageError(f"distributed takes auto or HOST:PORT, PORT below 65536; got {where}")
    return Launch(where, options.processes, options.process), others


def join(launch: Launch) -> None:
    """Connects this process to the others; afterwards `jax.devices()` has the devices of all processes.

    Raises:
        UsageError: the processes do not find each other, or they have different numbers of devices.
    """
    flag = f"--xla_cpu_collective_call_terminate_timeout_seconds={COLLECTIVE}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    import jax

    # it would replace the handler of SIGTERM
    jax.config.update("jax_enable_preemption_service", False)
    is_auto = launch.coordinator == "auto"
    address = None if is_auto else launch.coordinator
    try:
        jax.distributed.initialize(
            address,
            launch.count,
            launch.index,
            cluster_detection_method=None if is_auto else "deactivate",
            initialization_timeout=CONNECTING,
            heartbeat_timeout_seconds=HEARTBEAT,
            coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or address,
        )
    except (ValueError, RuntimeError) as error:
        reason = f"the processes do not find each other ({files.reason(error)}); check the address or the cluster"
        raise UsageError(f"distributed {launch.coordinator}: {reason}") from None
    if hardware.current().is_cpu:
        # with jax 0.10.2 a program from the cache in one process and a compiled one in another waited for each other
        jax.config.update("jax_enable_compilation_cache", False)
    if jax.device_count() != jax.process_count() * jax.local_device_count():
        raise UsageError(
            f"process {jax.process_index()} has {jax.local_device_count()} devices of {jax.device_count()} in"
            f" {jax.process_count()} processes; start processes with equal numbers of devices"
        )


def run(launch: Launch, command: Callable[[], int]) -> int:
    """Joins the processes, runs a command in each, and returns its exit code.

    Only process 0 reports an error that all processes raise. An error of this process alone ends it at once, and the
    others end because it is lost.

    Args:
        launch: how the processes find each other.
        command: returns its exit code; its UsageErrors are raised by all processes.
    """
    import jax

    join(launch)
    from fedvg_jax.host import processes

    try:
        code = command()
    except UsageError as error:
        if processes.is_first():
            # before the wait for processes that may hang
            print(f"error: {error}", file=sys.stderr, flush=True)
        jax.distributed.shutdown()
        return 2
    except Exception as error:
        if processes.is_loss(error):
            _end(LOST_MESSAGE, LOST)
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
