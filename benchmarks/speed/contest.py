"""The protocol between `rounds` and its contestants, and the comparison of their models.

A contestant is a process, because threads and environment variables are set per process. It prints one line of JSON
when it is ready, and one per request from standard input: "check" and "exact" write models to a file, "time" times the
rounds once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine

SCHEDULE_FIELDS = ("clients", "num_samples", "num_steps", "start", "rows")
"""Fields of a schedule that the other contestants read."""

STEP, EXACT, ROUND, ROUNDING, WEIGHTS = 1e-8, 1e-6, 0.01, 10, 0.05
"""Largest allowed differences.

STEP: every client after one step in float64, ||a - b|| / ||b - initial||; sums have 1e5 terms with some cancellation.
EXACT: the whole round in float64, by the same ratio. In float32 a ReLU sometimes flips sign, which moved one client of
    ResNet-18 by 1 % of its first step and by 70 % of ten steps; in float64 no ReLU flips.
ROUND: the timed float32 round against the same round in float64, ||a - exact|| / ||exact - initial||: each side may be
    off by 0.01 plus ROUNDING times the error of the other side.
WEIGHTS: relative difference of weights, which are inverses of the gradient norms of such clients.
"""


def flatten_model(prefix: str, params: Mapping, stats: Mapping) -> dict[str, np.ndarray]:
    """Returns the arrays of a model or a part by path: "prefix/params/layer/kernel", "prefix/stats/layer/mean"."""

    def flatten(node, path: str) -> dict[str, np.ndarray]:
        if not isinstance(node, Mapping):
            return {} if node is None else {path: np.asarray(node)}
        return {
            name: leaf for key in node for name, leaf in flatten(node[key], f"{path}/{key}").items()
        }

    return flatten(params, f"{prefix}/params") | flatten(stats, f"{prefix}/stats")


def select_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns the arrays with names that begin with "prefix/", by the rest of the name."""
    return {
        n.removeprefix(prefix + "/"): a for n, a in arrays.items() if n.startswith(prefix + "/")
    }


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of a contestant's command line."""
    made = machine.parser(doc)
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--threads", type=int, required=True)
    return made


def serve(
    folder: Path,
    name: str,
    files: Mapping[str, Callable[[], dict]],
    time: Callable[[], dict],
    about: dict[str, Any],
) -> None:
    """Prints `about`, then answers requests from standard input until it ends.

    Args:
        folder: for the files.
        name: of the contestant.
        files: request -> function that returns the arrays of a file.
        time: answers every other request; returns seconds.
        about: what the results record of this contestant.
    """
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        if make_arrays := files.get(line.strip()):
            np.savez(folder / f"{name}.{line.strip()}.npz", **make_arrays())
            print(json.dumps({}), flush=True)
        else:
            print(json.dumps(time()), flush=True)


class Contestant:
    """A process that runs `serve`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        num_cores: int,
    ):
        """Starts the process on the first `num_cores` cores of this process: XLA has a thread for each."""
        self.path = folder / name
        cores = sorted(machine.affinity())[:num_cores]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        variables = machine.environment(**environment)
        with self.path.with_suffix(".log").open("w") as errors:
            self.process = subprocess.Popen(command, env=variables, stderr=errors, **pipes)
        os.sched_setaffinity(self.process.pid, cores)  # before it has imported XLA
        self.about = self._read_answer()

    def request(self, name: str) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            RuntimeError: the process ended; with the last line of its standard error.
        """
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        return self._read_answer()

    def arrays(self, request: str) -> dict[str, np.ndarray]:
        """Sends a request and returns the arrays that the process writes."""
        self.request(request)
        with np.load(f"{self.path}.{request}.npz") as file:
            return dict(file)

    def _read_answer(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries may print other lines
                return json.loads(line)
        self.process.wait()
        raise RuntimeError(machine.last_line(self.path.with_suffix(".log").read_text()))

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def differences(
    ours: Mapping, theirs: Mapping, exact: Mapping, initial: Mapping
) -> dict[str, float]:
    """Returns how far another contestant's results are from ours, as ratios of norms; see `STEP` for their limits.

    Args:
        ours: arrays of our "check": clients after one step in float64, the timed round's model and weights.
        theirs: the same of the other contestant, and its round in float64.
        exact: our round in float64.
        initial: the initial model.
    """

    def distance(a: Mapping, b: Mapping) -> float:
        parameters = (name for name in b if name.startswith("params/"))
        return math.hypot(*(np.linalg.norm(np.float64(a[n]) - b[n]) for n in parameters))

    start, truth = select_prefix(initial, "init"), select_prefix(exact, "round")
    step, update = select_prefix(theirs, "step"), max(distance(truth, start), 1e-30)
    relative = np.asarray(theirs["weights"]) / np.maximum(ours["weights"], 1e-30) - 1
    return {
        "step": distance(select_prefix(ours, "step"), step) / max(distance(step, start), 1e-30),
        "exact": distance(select_prefix(theirs, "exact"), truth) / update,
        "our rounding": distance(select_prefix(ours, "round"), truth) / update,
        "their rounding": distance(select_prefix(theirs, "round"), truth) / update,
        "weights": float(np.abs(relative).max()),
    }


def agrees(gaps: Mapping[str, float]) -> bool:
    """Returns whether rounding explains all of a contestant's differences from ours, see `differences`."""
    small, large = sorted((gaps["our rounding"], gaps["their rounding"]))
    same = gaps["step"] <= STEP and gaps["exact"] <= EXACT
    return same and large <= ROUND + ROUNDING * small and gaps["weights"] <= WEIGHTS
