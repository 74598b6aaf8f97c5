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

from fedvg_jax import build, executors, local, presets, round, schedule, tree
from fedvg_jax import config as configs
from fedvg_jax import data as datasets
from fedvg_jax.config import Config
from fedvg_jax.models import layout, lenet, task
from fedvg_jax.types import Batch, Data, Schedule, SimState, UsageError, Variables

CLIENTS, ROUND, CHAINED, WEIGHTS = 1e-5, 0.01, 0.05, 5e-3

METHODS = {
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "fedavgm": "fedavgm",
    "scaffold": "scaffold",
    "feddyn": "feddyn",
    "elastic": "elastic",
    "fedgrad": "fedvg",
    "fedgradavg": "fedavg+fedvg",
    "fedgradprox": "fedprox+fedvg",
    "fedgradscaffold": "scaffold+fedvg",
    "fedgraddyn": "feddyn+fedvg",
    "fedgradelastic": "elastic+fedvg",
}
"""The recorded names of the methods -> ours."""

EXTRAS = {
    "+fedgrad.mode=clientwise": {"fedvg.granularity": "modelwise"},
    "+fedgrad.mode=layerwise": {"fedvg.granularity": "layerwise"},
    "+fedgrad.mode=blockwise": {"fedvg.granularity": "blockwise"},
    "+fedgrad.mode=spectral": {"fedvg.norm": "spectral_l2", "fedvg.granularity": "layerwise"},
    "+fedgrad.norm_order=1": {"fedvg.norm": "l1"},
    "+fedgrad.norm_order=2": {"fedvg.norm": "l2"},
    "+fedgrad.type=avg": {},
    "+fedgrad.type=avgm": {"algorithm": "fedavgm"},
}
"""Recorded options -> our settings; `fedprox.mu=NUMBER` besides."""


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
    if meta["method"] not in METHODS or meta["model"] != "lenet5":
        can = f"{', '.join(METHODS)} with lenet5"
        raise UsageError(f"--golden {path} holds {meta['method']} {meta['model']}; this replays {can}")
    return Recording(meta, arrays)


def settings(recording: Recording) -> Config:
    """The recorded run's settings, in the published code's fidelity."""
    meta = recording.meta
    named = presets.METHODS[METHODS[meta["method"]]] | presets.FIDELITY["official"]
    for extra in meta.get("extra", []):
        if extra.startswith("fedprox.mu="):
            named |= {"fedprox.mu": float(extra.partition("=")[2])}
        elif extra in EXTRAS:
            named |= EXTRAS[extra]
        else:
            raise UsageError(f"recorded option {extra!r} is not known; known: {', '.join(EXTRAS)}, fedprox.mu=NUMBER")
    own = {"clients": meta["clients"], "batch_size": meta["batch"], "lr": meta["lr"], "local_epochs": meta["epochs"]}
    return configs.apply(Config(), named | own, "recording")


def replay(recording: Recording, data_dir: Path, out: Path | None) -> bool:
    """Replays all rounds, prints what differs, and says whether everything agrees."""
    meta, config = recording.meta, settings(recording)
    images = datasets.load("cifar10", data_dir, configs.default_cache_dir() / "data")
    model = task.classification(lenet.LeNet5(10, layout.by_name("auto")), 10, images.x.shape[1:])
    val = schedule.cut(recording.arrays["val_rows"], meta["batch"])
    data = Data(Batch(jnp.asarray(images.x), jnp.asarray(images.y)), jnp.asarray(val), val, val)
    algorithm = build.ALGORITHMS[config.algorithm](config)
    if config.algorithm == "elastic":  # the published chain of sensitivities is serial: the recorded ones are fed
        algorithm = algorithm._replace(probe=lambda hyper, probe: tree.take(hyper["recorded"], probe.position))
    weighting = build.make_weighting(config, model, algorithm)
    executor, optimiser, clients = executors.lanes(1), build.make_optimiser(config), meta["clients"]
    published = {"stats_too": True, "weigh_untrained": True}
    round_step = round.make_round(model, algorithm, weighting, executor, optimiser, clients, **published)
    step, hyper = jax.jit(round_step), build.make_hyper(config)
    first = round.init(model, algorithm, clients, jax.random.key(0), hyper, stats_too=True)

    def started(r: int, memory: SimState) -> SimState:
        return memory._replace(variables=torch_layout.from_torch(recording.before(r), first.variables))

    schedules = [make_schedule(recording, r) for r in range(meta["rounds"])]
    gaps = client_gaps(recording, model, algorithm, started(0, first), schedules[0], data, hyper)
    rows, saved, alone, chained = [], {}, first, started(0, first)
    for r, planned in enumerate(schedules):
        fed = hyper | sensitivities(recording, r, first.variables)
        alone, metrics = step(started(r, alone), planned, data, fed)
        chained, chained_metrics = step(chained, planned, data, fed)
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
    batches = [batches_of(recording, arrays[f"r{r}/rows/{j}"], int(c)) for j, c in enumerate(clients)]
    held = [len(arrays[f"part/{c}/train"]) for c in clients]
    num_samples = [int(arrays.get(f"r{r}/n/{j}", n)) for j, n in enumerate(held)]
    pool = sum(len(arrays[f"part/{c}/train"]) for c in range(meta["clients"]))
    capacity = schedule.capacity(pool, len(clients), meta["epochs"], meta["batch"])
    return schedule.pack(clients, batches, num_samples, num_lanes=1, capacity=capacity)


def batches_of(recording: Recording, rows: np.ndarray, client: int) -> np.ndarray:
    """Rows as visited -> minibatches: whole epochs cut into batches; for Scaffold one batch an epoch."""
    epochs, size = recording.meta["epochs"], recording.meta["batch"]
    if "scaffold" not in recording.meta["method"]:
        return np.concatenate([schedule.cut(epoch, size) for epoch in rows.reshape(epochs, -1)])
    held = len(recording.arrays[f"part/{client}/train"])
    epoch = [min(size, held - begin) for begin in range(0, held, size)]
    lengths = [n for n in epoch if n > 1] * epochs
    return np.concatenate([schedule.cut(part, size) for part in np.split(rows, np.cumsum(lengths[: epochs - 1]))])


def sensitivities(recording: Recording, r: int, like: Variables) -> dict:
    """Elastic's recorded sensitivities, stacked over the cohort, where there are any."""
    if f"r{r}/sens/0" not in recording.arrays:
        return {}
    names = recording.arrays["param_names"].tolist()
    cohort = range(len(recording.arrays[f"r{r}/clients"]))
    found = [dict(zip(names, recording.arrays[f"r{r}/sens/{j}"].tolist(), strict=True)) for j in cohort]
    trees = [torch_layout.by_name(values, like) for values in found]
    return {"recorded": jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)}


def client_gaps(recording, model, algorithm, state: SimState, planned: Schedule, data: Data, hyper) -> list[float]:
    """Largest difference of every client model of round 0."""

    def train(state, planned, data, hyper):
        def make_client(shared, planned):
            return local.make_client(model, algorithm, local.sgd, shared[0], planned, *shared[1:])

        return executors.lanes(1).train(make_client, (state, data, hyper), planned)

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
    """Largest relative difference of modelwise weights, where they are recorded."""
    theirs = recording.arrays.get(f"r{r}/weights")
    if theirs is None or recording.meta["method"] == "fedgradavg":  # recorded before mixing with n_k / N
        return None
    return float(np.max(np.abs(np.asarray(weights) / theirs - 1)))


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
