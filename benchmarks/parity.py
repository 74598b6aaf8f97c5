"""Replays recorded rounds of the published implementation through `round_step` and compares.

    python -m benchmarks.parity --golden FILE ... --data-dir DIR [--out FILE.npz] [--results FILE.json]

FILE is an .npz of recorded rounds (initial model, partition, minibatches, weights, global models); DIR holds the
CIFAR-10 images it was recorded on. What a file does not hold is not compared, and named. Agreement, after which the
exit code is 0, means:

    client models of round 1: largest difference of a value               <= 2e-6  (Elastic 1e-5)
    rounds from the recorded model before each, by
        ||ours - theirs|| / ||theirs - before|| over trained tensors:
        round 1, up to what the weights of that round differ by           <= 1e-3
        any round                                                         <= 5e-3
    all rounds chained, by the same ratio                                 <= 2e-2
    relative difference of the weights                                    <= 2e-3, chained 5e-3

Rounding alone gives 1e-7 to 5e-7 in client models and 2e-6 to 2e-5 in the ratio. In float32 a ReLU or a max-pool whose
inputs agree to rounding can decide differently in two implementations: that has moved a later round by up to 4.3e-3 and
weights by up to 1.4e-3. Round 1 starts from equal models and its client models are compared above, so only the weights
can add to rounding there. Other semantics (one client left out, another weighting) give ratios of 0.25 and more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

if not __package__:  # run as a file, which the README's command does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine, torch_layout
from fedvg_jax import config as configs
from fedvg_jax import data as datasets
from fedvg_jax.config import Config, presets
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, Data, Schedule, SimState, UsageError, Variables
from fedvg_jax.engine import executors, federated_round, local_training, schedule
from fedvg_jax.models import lenet, task
from fedvg_jax.models.conv import selection
from fedvg_jax.runs import simulation

CLIENTS, CLIENTS_OF_ELASTIC, FIRST, ROUND, CHAINED = 2e-6, 1e-5, 1e-3, 5e-3, 2e-2
WEIGHTS, CHAINED_WEIGHTS = 2e-3, 5e-3

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
        return {name: self.arrays[f"{prefix}/{name}"] for name in self.names()}

    def names(self) -> list[str]:
        """Torch's names of all tensors."""
        return [name for name in self.arrays["param_names"].tolist() if "num_batches_tracked" not in name]

    def holds_clients(self) -> bool:
        """Whether the client models of the first round are recorded, all of them."""
        clients = range(len(self.arrays["r0/clients"]))
        return all(f"r0/client{j}/{name}" in self.arrays for j in clients for name in self.names())

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
    recording = Recording(meta, arrays)
    if lacking := [key for key in needed(recording) if key not in arrays]:
        raise UsageError(f"--golden {path} lacks {', '.join(lacking[:3])}; a replay needs {len(lacking)} more arrays")
    return recording


def needed(recording: Recording) -> Iterator[str]:
    """Keys without which no round can be replayed and compared."""
    meta, arrays = recording.meta, recording.arrays
    yield from ("param_names", "val_rows", *(f"part/{c}/train" for c in range(meta["clients"])))
    numbers = range(meta["rounds"])
    models = ("init", *(f"r{r}/global" for r in numbers)) if "param_names" in arrays else ()
    yield from (f"{model}/{name}" for model in models for name in recording.names())
    for r in numbers:
        yield f"r{r}/clients"
        yield from (f"r{r}/rows/{j}" for j in range(len(arrays.get(f"r{r}/clients", ()))))


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


class Measured(NamedTuple):
    """How far our rounds are from the recorded ones; None for what the recording does not hold."""

    client_models: list[float] | None
    """largest difference of a value, for every client of round 1"""
    rounds: list[dict[str, Any]]
    """by round: ratio, chained, weights, chained_weights, tensors"""
    absent: list[str]
    """what could not be compared, in words"""
    saved: dict[str, np.ndarray]
    """our global models, in torch's layout"""


def replay(recording: Recording, data_dir: Path) -> Measured:
    """Replays all rounds and measures what differs."""
    meta, config = recording.meta, settings(recording)
    images = datasets.load("cifar10", data_dir, configs.default_cache_dir() / "data")
    model = task.classification(lenet.LeNet5(10, selection.layout("auto")), 10, images.x.shape[1:])
    val = schedule.split_into_minibatches(recording.arrays["val_rows"], meta["batch"])
    data = Data(Batch(jnp.asarray(images.x), jnp.asarray(images.y)), jnp.asarray(val), val, val)
    algorithm = simulation.ALGORITHMS[config.algorithm](config)
    if config.algorithm == "elastic":  # the published chain of sensitivities is serial: the recorded ones are fed
        algorithm = algorithm._replace(probe=lambda hyper, probe: tree.take(hyper["recorded"], probe.position))
    weighting = simulation.make_weighting(config, model, algorithm)
    executor, optimiser, clients = executors.lanes(1), simulation.make_optimiser(config), meta["clients"]
    published = {"stats_too": True, "weigh_untrained": True}
    round_step = federated_round.make_round(model, algorithm, weighting, executor, optimiser, clients, **published)
    step, hyper = jax.jit(round_step), simulation.make_hyper(config)
    first = federated_round.init_state(model, algorithm, clients, jax.random.key(0), hyper, stats_too=True)

    def started(r: int, memory: SimState) -> SimState:
        return memory._replace(variables=torch_layout.from_torch(recording.before(r), first.variables))

    schedules = [make_schedule(recording, r) for r in range(meta["rounds"])]
    gaps = None
    if recording.holds_clients():
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
                "chained_weights": weight_gap(recording, r, chained_metrics.weights),
                "tensors": {name: float(np.abs(ours[name] - theirs[name]).max()) for name in theirs if name in ours},
            }
        )
        saved |= {f"r{r}/global/{name}": tensor for name, tensor in ours.items()}
    return Measured(gaps, rows, absent(recording), saved)


def absent(recording: Recording) -> list[str]:
    """What a comparison would need and the recording does not hold, in words."""
    lacking = [] if recording.holds_clients() else ["client models of round 1"]
    rounds = [str(r + 1) for r in range(recording.meta["rounds"]) if weights_of(recording, r) is None]
    return lacking + [f"modelwise weights of rounds {', '.join(rounds)}"] * bool(rounds)


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
        return np.concatenate([schedule.split_into_minibatches(epoch, size) for epoch in rows.reshape(epochs, -1)])
    held = len(recording.arrays[f"part/{client}/train"])
    epoch = [min(size, held - begin) for begin in range(0, held, size)]
    lengths = [n for n in epoch if n > 1] * epochs
    return np.concatenate(
        [schedule.split_into_minibatches(part, size) for part in np.split(rows, np.cumsum(lengths[: epochs - 1]))]
    )


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
            return local_training.make_client(model, algorithm, local_training.sgd, shared[0], planned, *shared[1:])

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


def weights_of(recording: Recording, r: int) -> np.ndarray | None:
    """The modelwise weights of a round, where they are recorded as they were used."""
    before_mixing = recording.meta["method"] == "fedgradavg"  # recorded before they are mixed with n_k / N
    return None if before_mixing else recording.arrays.get(f"r{r}/weights")


def weight_gap(recording: Recording, r: int, weights) -> float | None:
    """Largest relative difference of modelwise weights, where they are recorded."""
    theirs = weights_of(recording, r)
    return None if theirs is None else float(np.max(np.abs(np.asarray(weights) / theirs - 1)))


def checks(method: str, measured: Measured) -> list[tuple[str, float, float]]:
    """(what, how far, how far it may be) for everything that was compared."""
    found = []
    if measured.client_models is not None:
        bound = CLIENTS_OF_ELASTIC if "elastic" in method else CLIENTS
        found.append(("client models of round 1", max(measured.client_models), bound))
    for r, row in enumerate(measured.rounds, 1):
        weights = row["weights"]
        first = FIRST + (weights or 0.0)
        is_exact = r == 1 and measured.client_models is not None and (weights is not None or is_native(method))
        found.append((f"round {r}", row["ratio"], min(first, ROUND) if is_exact else ROUND))
        found.append((f"round {r}, chained", row["chained"], CHAINED))
        if weights is not None:
            found.append((f"round {r}: weights, relative", weights, WEIGHTS))
            found.append((f"round {r}, chained: weights, relative", row["chained_weights"], CHAINED_WEIGHTS))
    return found


def is_native(method: str) -> bool:
    """Whether a method's weights are known before the round, not measured in it."""
    return "fedgrad" not in method


def report(recording: Recording, measured: Measured) -> bool:
    """Prints the tables; whether all bounds hold."""
    console, found = Console(), checks(recording.meta["method"], measured)
    title = f"{recording.meta['method']}, {recording.meta['model']}"
    table = Table("what", "difference", "allowed", "", title=title)
    for what, gap, allowed in found:
        table.add_row(what, f"{gap:.2e}", f"{allowed:.1e}", "agrees" if gap <= allowed else "DIFFERS")
    console.print(table)
    for what in measured.absent:
        console.print(f"not compared, because the file does not hold them: {what}", highlight=False)
    tensors = Table("tensor", *(f"round {r}" for r in range(1, len(measured.rounds) + 1)), title="largest by tensor")
    for name in measured.rounds[0]["tensors"]:
        tensors.add_row(name, *(f"{row['tensors'][name]:.1e}" for row in measured.rounds))
    console.print(tensors)
    return all(gap <= allowed for _, gap, allowed in found)


def results(machine_used: dict[str, Any], measured: dict[str, Measured]) -> dict[str, Any]:
    """What is written of all recordings: by our name of the method, to three digits."""

    def short(value):
        if isinstance(value, dict):
            return {name: short(part) for name, part in value.items()}
        if isinstance(value, list):
            return [short(part) for part in value]
        return float(f"{value:.3g}") if isinstance(value, float) else value

    methods = {
        METHODS[name]: {
            "client_models": short(found.client_models),
            "rounds": [short(row) for row in found.rounds],
            "not_compared": found.absent,
            "bounds": {what: allowed for what, _, allowed in checks(name, found)},
        }
        for name, found in measured.items()
    }
    return {"machine": machine_used, "methods": methods}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, required=True, nargs="+", metavar="FILE", help="recorded rounds (.npz)")
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="folder holding CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.npz", help="write our rR/global/NAME in torch's layout")
    parser.add_argument("--results", type=Path, metavar="FILE.json", help="write what was measured")
    args = parser.parse_args(argv)
    described = machine.describe(["python", "-m", "benchmarks.parity", "--golden", "FILE", "...", "--data-dir", "DIR"])
    measured: dict[str, Measured] = {}
    agrees = True
    try:
        for path in args.golden:
            recording = read(path)
            found = replay(recording, args.data_dir)
            agrees &= report(recording, found)
            measured[recording.meta["method"]] = found
            if args.out:
                np.savez(args.out, **found.saved)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.results:
        machine.write(args.results, results(machine.finished(described), measured))
    print("agrees" if agrees else "DIFFERS")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
