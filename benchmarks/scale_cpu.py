"""Measures rounds on 1, 2 and 4 CPU devices and processes, and compares them with the model of `scale_model`.

Run by `python -m benchmarks.scale --measure`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from fedvg_jax.engine import lane_plan

SETTINGS = {"clients": 16, "join-ratio": 0.5, "alpha": 0.5, "model": "tinycnn", "rounds": 40, "eval-every": 40}
"""Settings of the run on the digits; a local step of its model is too small for several cores."""

LAYOUTS = ((1, 1), (1, 2), (1, 4), (2, 2), (4, 4))
"""(processes, devices of all processes together)"""


def measure() -> dict[str, Any]:
    """Returns the seconds of a round in every layout, measured and estimated from those of one device."""
    description = machine.describe()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = {layout: round_seconds(folder, *layout) for layout in LAYOUTS}
        unscored = round_seconds(folder, 1, 1, ("--weighting", "samples"))
        cohorts = [record["clients"] for record in records(folder / "fedvg-1-1")]
        points = compare(seconds, unscored, cohorts, os.cpu_count() or 1)
    result = {"machine": machine.add_final_load(description), "settings": SETTINGS}
    return result | {"unscored": unscored, "points": points}


def compare(
    seconds: dict[tuple[int, int], float], unscored: float, cohorts: Sequence[Sequence[int]], cores: int
) -> list[dict[str, Any]]:
    """Returns measured and estimated seconds of a round in every layout.

    The estimate counts the steps of the longest lane and the clients that the busiest device scores. Devices beyond the
    number of cores take turns. Communication between processes is not part of the estimate.

    Args:
        seconds: (processes, devices) -> measured seconds of a round.
        unscored: seconds of a round on one device without scoring.
        cohorts: the clients of every round.
        cores: CPU cores of this machine.
    """
    steps_of = steps_of_clients()
    cohort_steps = [steps_of[np.asarray(clients)] for clients in cohorts]
    total = float(np.mean([steps.sum() for steps in cohort_steps]))
    points = []
    for (processes, devices), measured in seconds.items():
        longest = float(np.mean([lane_plan.extent(steps, devices).num_steps for steps in cohort_steps]))
        scored_share = float(np.mean([-(-len(steps) // devices) / len(steps) for steps in cohort_steps]))
        of_one_device = unscored * longest / total + (seconds[1, 1] - unscored) * scored_share
        estimated = of_one_device * max(1.0, devices / cores)
        points.append({"processes": processes, "devices": devices, "measured": measured, "estimated": estimated})
    return points


def steps_of_clients() -> np.ndarray:
    """Returns the local steps of every client of `SETTINGS`."""
    from benchmarks.scale_model import num_steps
    from fedvg_jax import config as configs
    from fedvg_jax import data as datasets
    from fedvg_jax.config import Config
    from fedvg_jax.data.partitions import client_rows
    from fedvg_jax.runs.population import make_partition

    settings = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    config = configs.apply(Config(), settings, "benchmark")
    parts = make_partition(config, datasets.load("digits"))
    return num_steps(client_rows.sizes(parts.train), int(config.local_epochs), config.batch_size)


def round_seconds(folder: Path, processes: int, devices: int, options: Sequence[str] = ()) -> float:
    """Runs `SETTINGS` in a layout; returns the median seconds of a round, without the first chunk.

    Args:
        folder: for run folders.
        processes: number of processes.
        devices: of all processes together.
        options: further flags, e.g. ("--weighting", "samples").
    """
    weighting = options[1] if options else "fedvg"
    out = folder / f"{weighting}-{processes}-{devices}"
    command = [sys.executable, "-m", "fedvg_jax.sim", "--out", str(out), "--devices", str(devices), *options]
    command += [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices // processes), "JAX_PLATFORMS": "cpu"}
    if processes == 1:
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    else:
        address = f"localhost:{_free_port()}"
        shared = [*command, "--distributed", address, "--processes", str(processes), "--process"]
        children = [
            subprocess.Popen([*shared, str(i)], env=environment, stdout=subprocess.DEVNULL) for i in range(processes)
        ]
        if any([child.wait() for child in children]):
            raise SystemExit(f"{processes} processes did not finish a run")
    return float(np.median([record["seconds"] for record in records(out)[1:]]))


def records(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of a run folder's rounds."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
