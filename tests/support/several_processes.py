"""Processes that are started together, and runs of the command line in several of them."""

import contextlib
import itertools
import os
import shlex
import socket
import subprocess
import sys

import numpy as np

from fedvg_jax.runs.record import history
from support.processes import default_signals

PORTS = itertools.count(20_000 + 100 * (os.getpid() % 100))
"""Ports of this process, below those that the kernel hands out: no other socket takes one before a test does."""


def free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("localhost", port))
            return port


@contextlib.contextmanager
def started_together(commands, folder, num_devices=1):
    """Starts a process for each command, each with its own log in `folder`, and kills them at the end."""
    own = {"JAX_NUM_CPU_DEVICES": str(num_devices), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment, started = os.environ | own, []
    try:
        with default_signals():
            for number, command in enumerate(commands):
                log = (folder / f"process{number}.log").open("ab")
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


FLAGS = shlex.split("--eval-every 1 --clients 9 --join-ratio 0.45 --local-epochs 1 --lr 0.05")


def run_processes(folder, name, layout, *words):
    """Runs the command line in (processes, devices of each)."""
    count, devices = layout
    words = [*FLAGS, "--devices", str(count * devices), *words]
    words += ["--resume" if (folder / name).exists() else "--out", str(folder / name)]
    with started_together(commands(count, *words), folder, devices) as started:
        codes = [process.wait(600) for process in started]
    assert codes == count * [0], logs(folder)


def commands(count, *words):
    """Returns the command of every process of a run, which meet at a free port if there are several."""
    command = [sys.executable, "-m", "fedvg_jax.sim", *words]
    if count == 1:
        return [command]
    command += f"--distributed localhost:{free_port()} --processes {count} --process".split()
    return [[*command, str(number)] for number in range(count)]


def logs(folder) -> str:
    """Returns the ends of the logs of processes."""
    return "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))


def assert_equal_histories(folder, name, expected):
    """The same numbers, to rounding, in the histories of two runs of four rounds."""
    one, other = (history.read(folder / each) for each in (name, expected))
    assert len(one) == len(other) == 4
    for mine, its in zip(one, other, strict=True):
        for entry in ("clients", "weights", "scores", "test_loss", "val_loss"):
            np.testing.assert_allclose(
                mine[entry], its[entry], rtol=2e-5, err_msg=f"{name} {entry}"
            )
