"""What contestants share: the world they work in, the requests they answer, and what agreement means.

A contestant is a process of its own, so that threads and environment are its own too. It prints one line of JSON when
it is ready and one per request; `check` leaves its models in a file, `time` times one repeat.
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

STEP, ROUND, WEIGHTS = 1e-5, 0.05, 0.02
"""Allowed differences.

After one step, of the parameters: ||a - b|| / ||b||. A float32 sum over n terms is off by up to sqrt(n) 2^-24, n <= 1e5
terms of a gradient, or 2e-5 of it, and a step is a tenth of the parameters or less.
After the round, of the update: ||a - b|| / ||b - before||. A hundred steps amplify: one ReLU or max-pool decision that
falls the other way moves a client by 1e-3 of its update, so does a bias before BatchNorm, whose gradient is noise. A
wrong minibatch, learning rate or weight moves it by 0.1 and more.
Weights are inverses of norms of such clients' gradients.
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


def serve(file: Path, check: Callable[[], dict], time: Callable[[], dict], about: dict[str, Any]) -> None:
    """Says `about`, then answers requests from standard input until it ends."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            np.savez(file, **check())
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


def disagreement(ours: Mapping, theirs: Mapping, before: Mapping) -> dict[str, float]:
    """How far two contestants are apart: clients after one step, the model after a round, the weights."""

    def distance(a: Mapping, b: Mapping, names) -> float:
        return float(np.sqrt(sum(np.square(np.float64(a[n]) - b[n]).sum() for n in names)))

    after = {prefix: (below(ours, prefix), below(theirs, prefix)) for prefix in ("step", "round")}
    names = [name for name in after["step"][0] if name.startswith("params/")]
    nothing = dict.fromkeys(names, 0.0)
    step, moved = after["step"], after["round"]
    return {
        "step": distance(*step, names) / distance(step[0], nothing, names),
        "round": distance(*moved, names) / max(distance(moved[0], below(before, "init"), names), 1e-30),
        "weights": float(np.abs(np.asarray(theirs["weights"]) / np.maximum(ours["weights"], 1e-30) - 1).max()),
    }


def agrees(found: Mapping[str, float]) -> bool:
    """Whether all three are within what rounding allows."""
    allowed = {"step": STEP, "round": ROUND, "weights": WEIGHTS}
    return all(found[name] <= most for name, most in allowed.items())
