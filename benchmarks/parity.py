"""Replays recorded rounds of the published implementation with this package and compares models and weights.

    python -m benchmarks.parity --golden FILE ... --data-dir DIR [--out FILE.npz] [--results FILE.json]

FILE is an .npz of recorded rounds (initial model, partition, minibatches, weights, global models); DIR has the CIFAR-10
images of the recording. Prints the differences, and lists what a file lacks and is therefore not compared. The exit
code is 0 if all differences are within these bounds:

    client models of round 1: largest difference of a value               <= 2e-6  (Elastic 1e-5)
    each round started from the recorded model, by
        ||ours - theirs|| / ||theirs - before|| over trained tensors:
        round 1, plus the difference of that round's weights              <= 1e-3
        any round                                                         <= 5e-3
    all rounds chained, by the same ratio                                 <= 2e-2
    relative difference of the weights                                    <= 2e-3, chained 5e-3

Rounding alone gives 1e-7 to 5e-7 in client models and 2e-6 to 2e-5 in the ratio. In float32 a ReLU or a max-pool can
choose another branch if its inputs differ by rounding: that moved a later round by up to 4.3e-3 and weights by up to
1.4e-3. Round 1 starts from equal models, and its client models are compared above, so its ratio exceeds rounding only
by the difference of the weights. Other semantics (one client left out, another weighting) give ratios of 0.25 and more.
"""

from __future__ import annotations

import functools
import json
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine, torch_layout
from fedvg_jax import commands, config as configs, data as datasets, resolve
from fedvg_jax.config import Config, options, presets
from fedvg_jax.config.options import algorithm_of
from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    Data,
    Schedule,
    SimState,
    Task,
    UsageError,
    Variables,
)
from fedvg_jax.engine import executors, federated_round, local_training, schedule
from fedvg_jax.models import plain, task as tasks
from fedvg_jax.models.conv.rewrite import fast_task

CLIENTS, CLIENTS_OF_ELASTIC, FIRST, ROUND, CHAINED = 2e-6, 1e-5, 1e-3, 5e-3, 2e-2
WEIGHTS, CHAINED_WEIGHTS = 2e-3, 5e-3

_NAMES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METHODS: dict[str, str] = _NAMES["methods"]
"""Name of a method in recordings -> our name."""
OPTIONS: dict[str, dict[str, Any]] = _NAMES["options"]
"""Recorded option -> our settings. `fedprox.mu=NUMBER` is also allowed."""


class Recording(NamedTuple):
    """Recorded rounds of the published implementation."""

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the model recorded under `prefix`, by torch's names."""
        return {name: self.arrays[f"{prefix}/{name}"] for name in self.names()}

    def names(self) -> list[str]:
        """Returns torch's names of all tensors."""
        return [
            name
            for name in self.arrays["param_names"].tolist()
            if "num_batches_tracked" not in name
        ]

    def has_client_models(self) -> bool:
        """Returns whether all client models of the first round are recorded."""
        clients = range(len(self.arrays["r0/clients"]))
        return all(f"r0/client{j}/{name}" in self.arrays for j in clients for name in self.names())

    def before(self, r: int) -> dict[str, np.ndarray]:
        """Returns the global model from which round r started."""
        return self.tensors("init" if r == 0 else f"r{r - 1}/global")


def read(path: Path) -> Recording:
    """Reads a recording.

    Raises:
        UsageError: the file is not a recording.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        return Recording(json.loads(str(arrays["meta"])), arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"--golden {path} is not a file of recorded rounds: {error}") from None


def settings(recording: Recording) -> Config:
    """Returns the settings of the recorded run, with the published code's behaviour (`fidelity` "official")."""
    meta = recording.meta
    named = presets.of_method(METHODS[meta["method"]]) | presets.FIDELITY["official"]
    for extra in meta.get("extra", []):
        name, _, value = extra.partition("=")
        named |= {name: float(value)} if name == "fedprox.mu" else OPTIONS[extra]
    recorded = {"clients": "clients", "batch_size": "batch", "lr": "lr", "local_epochs": "epochs"}
    of_meta = {name: meta[key] for name, key in recorded.items()}
    return configs.apply(Config(), named | of_meta, "recording")


class Differences(NamedTuple):
    """Differences of our rounds from the recorded ones; None for what the recording lacks."""

    client_models: list[float] | None
    """largest difference of a value, for every client of round 1"""
    rounds: list[dict[str, Any]]
    """by round: ratio, chained, weights, chained_weights"""
    not_compared: list[str]
    """descriptions of what the recording lacks"""


class Program(NamedTuple):
    """What the replay of a recording needs: the compiled round, and its inputs."""

    task: Task
    algorithm: Algorithm
    step: Callable
    """see `federated_round.make_round`"""
    hyper: dict[str, Any]
    data: Data
    initial: SimState
    """the initial state of the algorithm; its model is not the recorded one"""


def make_program(recording: Recording, data_dir: Path) -> Program:
    """Returns the jitted round of a recording's settings, with the published code's behaviour."""
    meta, config = recording.meta, settings(recording)
    images = datasets.load("cifar10", data_dir, options.default_cache_dir() / "data")
    task = fast_task(tasks.classification(plain.LeNet5(10), 10, images.x.shape[1:]))
    val = schedule.split_into_minibatches(recording.arrays["val_rows"], meta["batch"])
    data = Data(Batch(jnp.asarray(images.x), jnp.asarray(images.y)), jnp.asarray(val), val, val)
    algorithm = algorithm_of(config)
    # the published sensitivities are a serial chain, so the recorded ones are used
    if config.algorithm == "elastic":
        algorithm = algorithm._replace(
            probe=lambda hyper, probe: tree.take(hyper["recorded"], probe.position)
        )
    weighting = resolve.method.make_weighting(config, task, algorithm)
    optimiser, clients = resolve.method.make_optimiser(config), meta["clients"]
    parts = (task, algorithm, weighting, executors.lanes(1), optimiser, clients)
    step = federated_round.make_round(*parts, stats_too=True, weigh_untrained=True)
    hyper = resolve.method.scalars(config)
    initial = federated_round.init_state(task, algorithm, clients, hyper, stats_too=True)
    return Program(task, algorithm, jax.jit(step), dict(hyper), data, initial)


def replay(recording: Recording, data_dir: Path) -> tuple[Differences, dict[str, np.ndarray]]:
    """Replays all rounds and measures the differences.

    Each round is computed twice: from the recorded global model before it, and chained, from our previous one.

    Returns:
        The differences, and rR/global/NAME -> tensor of our global models, in torch's layout.
    """
    program = make_program(recording, data_dir)

    def with_recorded_model(state: SimState, r: int) -> SimState:
        return state._replace(
            variables=torch_layout.from_torch(recording.before(r), program.initial.variables)
        )

    schedules = [make_schedule(recording, r) for r in range(recording.meta["rounds"])]
    single, chained = program.initial, with_recorded_model(program.initial, 0)
    gaps, rows, models = None, [], {}
    if recording.has_client_models():
        gaps = client_gaps(recording, program, chained, schedules[0])
    for r, planned in enumerate(schedules):
        hyper = program.hyper | sensitivities(recording, r, program.initial.variables)
        single, metrics = program.step(with_recorded_model(single, r), planned, program.data, hyper)
        chained, chained_metrics = program.step(chained, planned, program.data, hyper)
        ours, theirs = torch_layout.to_torch(single.variables), recording.tensors(f"r{r}/global")
        before = recording.before(r)
        rows.append(
            {
                "ratio": ratio(ours, theirs, before),
                "chained": ratio(torch_layout.to_torch(chained.variables), theirs, before),
                "weights": weight_gap(recording, r, metrics.weights),
                "chained_weights": weight_gap(recording, r, chained_metrics.weights),
            }
        )
        models |= {f"r{r}/global/{name}": tensor for name, tensor in ours.items()}
    return Differences(gaps, rows, not_compared(recording)), models


def not_compared(recording: Recording) -> list[str]:
    """Returns descriptions of what the recording lacks, so that it is not compared."""
    missing = [] if recording.has_client_models() else ["client models of round 1"]
    rounds = range(recording.meta["rounds"])
    unweighed = [str(r + 1) for r in rounds if weights_of(recording, r) is None]
    return missing + [f"modelwise weights of rounds {', '.join(unweighed)}"] * bool(unweighed)


def make_schedule(recording: Recording, r: int) -> Schedule:
    """Returns the schedule of the recorded minibatches of round r."""
    meta, arrays = recording.meta, recording.arrays
    clients = arrays[f"r{r}/clients"]
    batches = [
        batches_of(recording, arrays[f"r{r}/rows/{j}"], int(c)) for j, c in enumerate(clients)
    ]
    sizes = [len(arrays[f"part/{c}/train"]) for c in clients]
    num_samples = [int(arrays.get(f"r{r}/n/{j}", n)) for j, n in enumerate(sizes)]
    pool = sum(len(arrays[f"part/{c}/train"]) for c in range(meta["clients"]))
    capacity = schedule.capacity(pool, len(clients), meta["epochs"], meta["batch"])
    drawn = schedule.pack(clients, batches, num_samples, num_lanes=1)
    return schedule.padded(drawn, capacity)


def batches_of(recording: Recording, rows: np.ndarray, client: int) -> np.ndarray:
    """Returns the minibatches of a client's rows, int32 [S, B].

    Args:
        recording: gives the number of epochs and the batch size.
        rows: of the client, in the order of training.
        client: its id.
    """
    epochs, size = recording.meta["epochs"], recording.meta["batch"]
    if "scaffold" in recording.meta["method"]:
        num_rows = len(recording.arrays[f"part/{client}/train"])
        epoch = [min(size, num_rows - begin) for begin in range(0, num_rows, size)]
        lengths = [n for n in epoch if n > 1] * epochs
        parts = np.split(rows, np.cumsum(lengths[: epochs - 1]))
    else:
        parts = rows.reshape(epochs, -1)
    return np.concatenate([schedule.split_into_minibatches(part, size) for part in parts])


def sensitivities(recording: Recording, r: int, like: Variables) -> dict:
    """Returns Elastic's recorded sensitivities, stacked over the cohort; nothing for other methods."""
    if f"r{r}/sens/0" not in recording.arrays:
        return {}
    names = recording.arrays["param_names"].tolist()
    cohort = range(len(recording.arrays[f"r{r}/clients"]))
    by_client = [
        dict(zip(names, recording.arrays[f"r{r}/sens/{j}"].tolist(), strict=True)) for j in cohort
    ]
    trees = [torch_layout.by_name(values, like) for values in by_client]
    return {"recorded": jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)}


def client_gaps(
    recording: Recording, program: Program, state: SimState, planned: Schedule
) -> list[float]:
    """Returns the largest difference of every client model of the first round.

    Args:
        recording: with client models.
        program: of the recording.
        state: before the first round.
        planned: the first round.
    """
    task, algorithm = program.task, program.algorithm

    def train(state, planned, data, hyper):
        make_client = functools.partial(
            local_training.make_client, task, algorithm, local_training.sgd
        )
        return executors.lanes(1).train(make_client, (state, data, hyper), planned)

    trained = jax.jit(train)(state, planned, program.data, program.hyper)
    gaps = []
    for j in range(len(planned.clients)):
        ours = torch_layout.to_torch(
            jax.tree.map(lambda x, j=j: x[j], Variables(trained.params, trained.stats))
        )
        theirs = recording.tensors(f"r0/client{j}")
        gaps.append(max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours))
    return gaps


def ratio(ours: dict, theirs: dict, before: dict) -> float:
    """Returns ||ours - theirs|| / ||theirs - before|| over the trained tensors."""

    def norm(a, b):
        trained = filter(torch_layout.is_trained, theirs)
        return np.sqrt(sum(np.square(np.float64(a[n]) - b[n]).sum() for n in trained))

    return float(norm(ours, theirs) / norm(theirs, before))


def weights_of(recording: Recording, r: int) -> np.ndarray | None:
    """Returns the modelwise weights of a round; None if the weights of the aggregation are not recorded."""
    # the recording has this method's weights before they are mixed with n_k / N
    before_mixing = recording.meta["method"] == "fedgradavg"
    return None if before_mixing else recording.arrays.get(f"r{r}/weights")


def weight_gap(recording: Recording, r: int, weights) -> float | None:
    """Returns the largest relative difference of modelwise weights; None if they are not recorded."""
    theirs = weights_of(recording, r)
    return None if theirs is None else float(np.max(np.abs(np.asarray(weights) / theirs - 1)))


def checks(method: str, differences: Differences) -> list[tuple[str, float, float]]:
    """Returns (quantity, difference, bound) of everything that was compared."""
    rows = []
    if differences.client_models is not None:
        bound = CLIENTS_OF_ELASTIC if "elastic" in method else CLIENTS
        rows.append(("client models of round 1", max(differences.client_models), bound))
    for r, row in enumerate(differences.rounds, 1):
        bound = ROUND
        has_weights = row["weights"] is not None or "fedgrad" not in method
        if r == 1 and differences.client_models is not None and has_weights:
            bound = min(FIRST + (row["weights"] or 0.0), ROUND)
        compared = (
            ("", row["ratio"], bound),
            (", chained", row["chained"], CHAINED),
            (": weights, relative", row["weights"], WEIGHTS),
            (", chained: weights, relative", row["chained_weights"], CHAINED_WEIGHTS),
        )
        rows += [(f"round {r}{what}", gap, most) for what, gap, most in compared if gap is not None]
    return rows


def compare(recordings: Sequence[Path], data_dir: Path, out: Path | None, file: Path | None) -> int:
    """Replays recordings, and prints and writes the differences; exit code 1 if one is too large.

    Raises:
        UsageError: a file is not a recording, or lacks what a replay needs.
    """
    command = ["python", "-m", "benchmarks.parity", "--golden", "FILE", "...", "--data-dir", "DIR"]
    results: dict[str, Any] = {"machine": machine.describe(command), "methods": {}}
    agrees = True
    for path in recordings:
        recording = read(path)
        try:
            differences, models = replay(recording, data_dir)
        except KeyError as error:
            raise UsageError(f"--golden {path}: {error} is missing, or not known here") from None
        method = recording.meta["method"]
        rows = checks(method, differences)
        print(f"{method}, {recording.meta['model']}: difference (allowed)")
        for quantity, gap, most in rows:
            verdict = "agrees" if gap <= most else "DIFFERS"
            print(f"  {quantity}: {gap:.2e} ({most:.1e}) {verdict}")
            agrees &= gap <= most
        for quantity in differences.not_compared:
            print(f"  not compared, because the file lacks them: {quantity}")
        name = " ".join((METHODS[method], *recording.meta.get("extra", [])))
        bounds = {quantity: most for quantity, _, most in rows}
        results["methods"][name] = differences._asdict() | {"bounds": bounds}
        if out:
            np.savez(out, **models)
    text = json.dumps(results["methods"])
    results["methods"] = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.3g}"))
    machine.finish(file, results)
    print("agrees" if agrees else "DIFFERS")
    return int(not agrees)


def main(argv: list[str] | None = None) -> int:
    """Replays the recordings; exit code 0 if all agree, 1 if one differs, 2 after a user error."""
    parser = machine.parser(__doc__)
    parser.add_argument("--golden", type=Path, required=True, nargs="+", metavar="FILE.npz")
    parser.add_argument(
        "--data-dir", type=Path, required=True, metavar="DIR", help="folder with CIFAR-10"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.npz", help="write rR/global/NAME of one recording"
    )
    parser.add_argument("--results", type=Path, metavar="FILE.json", help="write the differences")
    args = parser.parse_args(argv)
    if args.out and len(args.golden) > 1:
        parser.error("--out takes the models of one recording: give one --golden FILE")
    return commands.guarded(lambda: compare(args.golden, args.data_dir, args.out, args.results))


if __name__ == "__main__":
    sys.exit(main())
