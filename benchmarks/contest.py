"""What contestants share: the world they work in, the requests they answer, and what agreement means.

A contestant is a process of its own, so that threads and environment are its own too. It prints one line of JSON when
it is ready and one per request; `check` and `exact` leave models in a file, `time` times one repeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PLANNED = ("clients", "num_samples", "num_steps", "start", "rows")
"""What the peers need of a schedule."""

STEP, EXACT, ROUND, ROUNDING, WEIGHTS = 1e-8, 1e-6, 0.01, 10, 0.05
"""Allowed differences.

STEP: every client after one step in float64, ||a - b|| / ||b - before||: sums of 1e5 terms with some cancellation.
EXACT: the whole round in float64, likewise. In single precision a ReLU falls the other way now and then, which moved
    one client of ResNet-18 by 1 % of its first step and by 70 % of ten; in double precision none does.
ROUND: the timed float32 round against the same round in float64, ||a - exact|| / ||exact - before||: each side may be
    off by 0.01 and ROUNDING times what the other is off by.
    Both are 1e-5 for who sends updates in float32 whatever the model is: 2^-24 ||theta|| / ||update|| was 1e-6.
WEIGHTS: inverses of the norms of such clients' gradients, relative.
"""


def resized(case, images: int | None, rounds: int | None):
    """The case at another size."""
    case = case._replace(images=images) if images and case.images else case
    return case._replace(rounds=rounds) if rounds else case


def by_path(prefix: str, params: Mapping, stats: Mapping) -> dict[str, np.ndarray]:
    """Nested dictionaries of arrays as "prefix/params/a/b"."""

    def flat(node, path: str) -> dict[str, np.ndarray]:
        if not isinstance(node, Mapping):
            return {path: np.asarray(node)}
        return {name: leaf for key in node for name, leaf in flat(node[key], f"{path}/{key}").items()}

    return flat(params, f"{prefix}/params") | flat(stats, f"{prefix}/stats")


def below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose name begins with "prefix/", without it."""
    return {n.removeprefix(prefix + "/"): a for n, a in arrays.items() if n.startswith(prefix + "/")}


def serve(
    folder: Path, name: str, files: Mapping[str, Callable[[], dict]], time: Callable[[], dict], about: dict[str, Any]
) -> None:
    """Says `about`, then answers requests from standard input until it ends: what `files` names goes to a file."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        if make := files.get(line.strip()):
            np.savez(folder / f"{name}.{line.strip()}.npz", **make())
            print(json.dumps({}), flush=True)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(json.dumps(time() | {"memory_gib": round(peak, 3)}), flush=True)


class Contestant:
    """The other end of `serve`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        self.log = log
        here = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, env=os.environ | {"PYTHONPATH": path} | dict(environment), stderr=errors, **pipes
            )
        self.about = self._answer()

    def ask(self, request: str) -> dict[str, Any]:
        """The answer, or a RuntimeError with the last line it complained with."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("{"):  # a library may print what it likes
                return json.loads(line)
        self.process.wait()
        said = self.log.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"]
        raise RuntimeError(said[-1])

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def disagreement(ours: Mapping, theirs: Mapping, exact: Mapping, before: Mapping) -> dict[str, float]:
    """How far two contestants are apart: clients after one step, and the round, in float64; each one's timed round from
    that; their weights. `exact` holds our round in float64, `before` the initial model."""

    def distance(a: Mapping, b: Mapping) -> float:
        return float(np.sqrt(sum(np.square(np.float64(a[n]) - b[n]).sum() for n in b if n.startswith("params/"))))

    start, truth = below(before, "init"), below(exact, "round")
    step, moved = below(theirs, "step"), max(distance(truth, start), 1e-30)
    known = below(ours, "step")
    known = {name: known[name][: len(clients)] for name, clients in step.items()}  # as many clients as they have
    return {
        "step": distance(known, step) / max(distance(step, start), 1e-30),
        "exact": distance(below(theirs, "exact"), truth) / moved,
        "our rounding": distance(below(ours, "round"), truth) / moved,
        "their rounding": distance(below(theirs, "round"), truth) / moved,
        "weights": float(np.abs(np.asarray(theirs["weights"]) / np.maximum(ours["weights"], 1e-30) - 1).max()),
    }


def agrees(found: Mapping[str, float], sends_single: bool = False) -> bool:
    """Whether all of it is what rounding explains."""
    step, exact = (1e-5, 1e-5) if sends_single else (STEP, EXACT)
    small, large = sorted((found["our rounding"], found["their rounding"]))
    same = found["step"] <= step and found["exact"] <= exact
    return same and large <= ROUND + ROUNDING * small and found["weights"] <= WEIGHTS
