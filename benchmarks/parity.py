"""Replays recorded rounds of the published implementation through `round_step` and compares.

    python benchmarks/parity.py --golden FILE --data-dir DIR [--out FILE.npz]

FILE is an .npz of recorded rounds (initial model, partition, minibatches, weights, global models); DIR holds the
CIFAR-10 images it was recorded on. Agreement, after which the exit code is 0, means:

    round 1's client models                                               within 1e-5
    each round from the recorded model before it:
        ||ours - theirs|| / ||theirs - before|| over trained tensors      <= 0.01
    all rounds chained: that ratio                                        <= 0.05
        relative difference of the weights                                <= 5e-3

The bounds are what float32 allows: one ReLU or max-pool decision that falls the other way moves a later round by 1e-3.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch_layout

from fedvg_jax import build, executors, local, round, schedule
from fedvg_jax import data as datasets
from fedvg_jax.config import Config, FedVG, default_cache_dir
from fedvg_jax.models import conv, lenet, task
from fedvg_jax.types import Batch, Data, Schedule, SimState, UsageError, Variables

CLIENTS, ROUND, CHAINED, WEIGHTS = 1e-5, 0.01, 0.05, 5e-3

METHODS = {"fedgrad": ("fedavg", "fedvg"), "fedavg": ("fedavg", "samples")}
"""The recorded names of the methods -> our algorithm and weighting."""


class Recording(NamedTuple):
    """A file of recorded rounds."""

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """The model recorded under `prefix`, in torch's names."""
        names = self.arrays["param_names"].tolist()
        return {name: self.arrays[f"{prefix}/{name}"] for name in names if "num_batches_tracked" not in name}

    def before(self, r: int) -> dict[str, np.ndarray]:
        """The global model that round r started from."""
        return self.tensors("init" if r == 0 else f"r{r - 1}/global")


def read(path: Path) -> Recording:
    """The recording, or a UsageError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        meta = json.loads(str(arrays["meta"]))
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UsageError(f"--golden {path} is not a file of recorded rounds: {error}") from None
    if meta["method"] not in METHODS or meta["model"] != "lenet5" or meta.get("extra"):
        can = f"methods {', '.join(METHODS)} with lenet5 and no extra options"
        raise UsageError(
            f"--golden {path} holds {meta['method']} {meta['model']} {meta.get('extra')}; this replays {can}"
        )
    return Recording(meta, arrays)


def replay(recording: Recording, data_dir: Path, out: Path | None) -> bool:
    """Replays all rounds, prints what differs, and says whether everything agrees."""
    meta = recording.meta
    images = datasets.load("cifar10", data_dir, default_cache_dir() / "data")
    model = task.classification(lenet.LeNet5(10, conv.by_name("auto")), 10, images.x.shape[1:])
    val = schedule.cut(recording.arrays["val_rows"], meta["batch"])
    data = Data(Batch(jnp.asarray(images.x), jnp.asarray(images.y)), jnp.asarray(val), val, val)
    algorithm, weighting = METHODS[meta["method"]]
    algorithm = build.ALGORITHMS[algorithm]()
    weighting = build.make_weighting(Config(weighting=weighting, batch_size=meta["batch"], fedvg=FedVG()), model)
    hyper = {"lr": jnp.float32(meta["lr"]), "eps": jnp.float32(FedVG().eps)}
    step = jax.jit(round.make_round(model, algorithm, weighting, executors.lanes(1), local.sgd, meta["clients"]))
    first = round.init(model, algorithm, meta["clients"], jax.random.key(0))

    def started(r: int) -> SimState:
        return first._replace(variables=torch_layout.from_torch(recording.before(r), first.variables))

    schedules = [make_schedule(recording, r) for r in range(meta["rounds"])]
    gaps = client_gaps(recording, model, algorithm, started(0), schedules[0], data, hyper)
    rows, saved, chained = [], {}, started(0)
    for r, planned in enumerate(schedules):
        alone, metrics = step(started(r), planned, data, hyper)
        chained, chained_metrics = step(chained, planned, data, hyper)
        ours, theirs = torch_layout.to_torch(alone.variables), recording.tensors(f"r{r}/global")
        before = recording.before(r)
        rows.append(
            {
                "ratio": ratio(ours, theirs, before),
                "chained": ratio(torch_layout.to_torch(chained.variables), theirs, before),
                "weights": weight_gap(recording, r, metrics.weights),
                "chained weights": weight_gap(recording, r, chained_metrics.weights),
                "tensors": {name: float(np.abs(ours[name] - theirs[name]).max()) for name in ours},
            }
        )
        saved |= {f"r{r}/global/{name}": tensor for name, tensor in ours.items()}
    if out:
        np.savez(out, **saved)
    return report(recording, gaps, rows)


def make_schedule(recording: Recording, r: int) -> Schedule:
    """The recorded minibatches of round r."""
    meta, arrays = recording.meta, recording.arrays
    clients = arrays[f"r{r}/clients"]
    visited = [arrays[f"r{r}/rows/{j}"].reshape(meta["epochs"], -1) for j in range(len(clients))]
    batches = [np.concatenate([schedule.cut(epoch, meta["batch"]) for epoch in rows]) for rows in visited]
    num_samples = [len(arrays[f"part/{c}/train"]) for c in clients]
    pool = sum(len(arrays[f"part/{c}/train"]) for c in range(meta["clients"]))
    capacity = schedule.capacity(pool, len(clients), meta["epochs"], meta["batch"])
    return schedule.pack(clients, batches, num_samples, num_lanes=1, capacity=capacity)


def client_gaps(recording, model, algorithm, state: SimState, planned: Schedule, data: Data, hyper) -> list[float]:
    """Largest difference of every client model of round 0."""

    def train(state, planned, data, hyper):
        client = local.make_client(model, algorithm, local.sgd, state, planned, data, hyper)
        return executors.lanes(1).train(client, planned)

    trained = jax.jit(train)(state, planned, data, hyper)
    gaps = []
    for j in range(len(planned.clients)):
        ours = torch_layout.to_torch(jax.tree.map(lambda x, j=j: x[j], Variables(trained.params, trained.stats)))
        theirs = recording.tensors(f"r0/client{j}")
        gaps.append(max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours))
    return gaps


def ratio(ours: dict, theirs: dict, before: dict) -> float:
    """||ours - theirs|| / ||theirs - before|| over the trained tensors."""

    def norm(a, b):
        return np.sqrt(sum(np.square(np.float64(a[n]) - b[n]).sum() for n in theirs if torch_layout.is_trained(n)))

    return float(norm(ours, theirs) / norm(theirs, before))


def weight_gap(recording: Recording, r: int, weights) -> float | None:
    """Largest relative difference of the aggregation weights, where they are recorded."""
    theirs = recording.arrays.get(f"r{r}/weights")
    return None if theirs is None else float(np.max(np.abs(np.asarray(weights) / theirs - 1)))


def report(recording: Recording, gaps: list[float], rows: list[dict]) -> bool:
    """Prints the tables; whether all bounds hold."""
    console = Console()
    checks = [("client models of round 1", max(gaps), CLIENTS)]
    for r, row in enumerate(rows, 1):
        checks.append((f"round {r}", row["ratio"], ROUND))
        checks.append((f"round {r}, chained", row["chained"], CHAINED))
        if row["weights"] is not None:
            checks.append((f"round {r}: weights, relative", row["weights"], WEIGHTS))
            checks.append((f"round {r}, chained: weights, relative", row["chained weights"], WEIGHTS))
    table = Table(
        "what", "relative difference", "allowed", "", title=f"{recording.meta['method']}, {recording.meta['model']}"
    )
    for what, found, allowed in checks:
        table.add_row(what, f"{found:.2e}", f"{allowed:.0e}", "agrees" if found <= allowed else "DIFFERS")
    console.print(table)
    tensors = Table("tensor", *(f"round {r}" for r in range(1, len(rows) + 1)), title="largest difference by tensor")
    for name in rows[0]["tensors"]:
        tensors.add_row(name, *(f"{row['tensors'][name]:.1e}" for row in rows))
    console.print(tensors)
    return all(found <= allowed for _, found, allowed in checks)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, required=True, metavar="FILE", help="recorded rounds (.npz)")
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="folder holding CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.npz", help="write our rR/global/NAME in torch's layout")
    args = parser.parse_args()
    try:
        agrees = replay(read(args.golden), args.data_dir, args.out)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("agrees" if agrees else "DIFFERS")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
