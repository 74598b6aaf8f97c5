"""Servers and weights under slow clients: runs of one virtual time, and their contrasts.

    python -m benchmarks.studies.slow_clients CIFAR10.npz DERMAMNIST.npz

The protocol is in benchmarks/results/slow_clients/README.md. Appends a line for every run to runs.csv beside it, and
continues where it was stopped: first the tuning seeds at all rates, then the others at the rate with the best accuracy
on D_val. When all are there it writes contrasts.csv.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies.paper.clients import rank_correlation
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.loop import run_simulation
from fedvg_jax.study import statistics

CLOCKS: dict[str, tuple[dict[str, Any], float]] = {
    "fixed": ({"fixed": 2.5}, 100.0),
    "step": ({"fixed": 1.0, "step": 0.1}, 200.0),
    "lognormal": ({"fixed": 1.0, "step": 0.1, "speeds": "lognormal:1"}, 300.0),
}
"""Clock -> its settings, and the virtual seconds of a run."""

SERVERS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "overselected": {"overselect": 1.3},
    "buffered 20": {"buffered": {"size": 10, "concurrency": 20}},
    "buffered 50": {"buffered": {"size": 10, "concurrency": 50}},
}

WEIGHTS = ("uniform", "samples", "fedvg", "permuted(fedvg)", "fedvg applied")
CONTRASTS = {
    "S1": ("accuracy", ("buffered 20", "uniform"), ("synchronous", "uniform")),
    "S2": ("accuracy", ("buffered 50", "uniform"), ("buffered 20", "uniform")),
    "S3": ("accuracy", ("buffered 50", "fedvg"), ("buffered 50", "uniform")),
    "S4": ("accuracy", ("buffered 50", "fedvg"), ("buffered 50", "permuted(fedvg)")),
    "S5": ("accuracy", ("buffered 50", "fedvg applied"), ("buffered 50", "fedvg")),
    "S6": ("correlation", ("buffered 50", "fedvg"), ("buffered 50", "permuted(fedvg)")),
    "S7": ("gap", ("buffered 50", "uniform"), ("synchronous", "uniform")),
    "S8": ("gap", ("buffered 50", "fedvg"), ("buffered 50", "uniform")),
}
"""Contrast -> what is compared, and two servers with weights, the second to be subtracted from the first."""

PRIMARY = {pair for _, *pairs in CONTRASTS.values() for pair in pairs}
"""Servers and weights of the contrasts, which run first."""

ALPHAS, RATES = (0.05, 0.1), (0.003, 0.01, 0.03)
SEEDS, TUNING_SEEDS = range(10), (1000, 1001)

COMMON = {
    "dataset": "npz",
    "model": "linear",
    "clients": 100,
    "join_ratio": 0.1,
    "min_samples_rule": "top_up",
    "local_epochs": 5,
    "batch_size": 32,
    "record": "accuracy_by_client",
}


class Condition(NamedTuple):
    """What a run is, except its learning rate."""

    data: str
    alpha: float
    clock: str
    server: str
    weights: str
    seed: int


def conditions(sets: Sequence[str], seeds: Sequence[int], is_primary: bool) -> Iterator[Condition]:
    """Yields the conditions of some seeds, one federation after the other: of the contrasts, or all others."""
    for seed, data, alpha, clock in itertools.product(seeds, sets, ALPHAS, CLOCKS):
        for server, weights in itertools.product(SERVERS, WEIGHTS):
            exists = weights != "fedvg applied" or server.startswith("buffered")
            if exists and ((server, weights) in PRIMARY) == is_primary:
                yield Condition(data, alpha, clock, server, weights, seed)


def settings(condition: Condition, file: Path, rate: float, rounds: int) -> fv.Config:
    """Returns the settings of a run."""
    name, _, applied = condition.weights.partition(" ")
    server = dict(SERVERS[condition.server])
    if applied:
        server["buffered"] = server["buffered"] | {"score": "applied"}
    return fv.Config(
        **COMMON,
        **server,
        clock=CLOCKS[condition.clock][0],
        data_dir=file,
        weighting=name,
        alpha=condition.alpha,
        seed=condition.seed,
        partition_seed=condition.seed,
        lr=rate,
        rounds=rounds,
        eval_every=rounds,
    )


def make_simulation(condition: Condition, file: Path, rate: float, rounds: int) -> Simulation:
    """Returns the simulation of a run."""
    return fv.simulation(settings(condition, file, rate, rounds))


def num_rounds(condition: Condition, file: Path) -> int:
    """Returns the updates of the server within the virtual time of a run."""
    most, horizon = 4000, CLOCKS[condition.clock][1]
    schedule, seconds = make_simulation(condition, file, RATES[0], most).schedule, 0.0
    for number in range(most):
        seconds += schedule(number).waited.seconds
        if seconds > horizon + 1e-6:
            return number
    return most


def measured(condition: Condition, file: Path, rate: float, rounds: int) -> dict[str, Any]:
    """Runs a condition, and returns its line."""
    sim = make_simulation(condition, file, rate, rounds)
    cohorts, sizes = sim.experiment.cohorts, np.array([len(r) for r in sim.partition.train])
    steps = cohorts.local_epochs[0] * np.ceil(sizes / sim.config.batch_size)
    durations = cohorts.clock.seconds(np.arange(len(sizes)), steps, 0, 0, 0, 0)
    is_slow = durations > np.median(durations)
    records = run_simulation(sim).records
    last, weights = records[-1], np.array([record["weights"] for record in records])
    of_slow = is_slow[np.array([record["clients"] for record in records])]
    accuracies = pd.Series(last["accuracy_by_client"], dtype=float).groupby(is_slow).mean()
    stale = (record.get("staleness", ()) for record in records)
    correlations = pd.Series(list(map(rank_correlation, stale, weights)))
    line = {
        "rounds": rounds,
        "virtual_seconds": last["virtual_seconds"],
        "accuracy": 100 * last["test_accuracy"],
        "balanced": 100 * last["test_balanced_accuracy"],
        "val_accuracy": 100 * last["val_accuracy"],
        "fast": 100 * accuracies.get(False, np.nan),
        "slow": 100 * accuracies.get(True, np.nan),
        "slow_trainings": of_slow.mean(),
        "slow_weight": (weights * of_slow).sum(1).mean(),
        "staleness": np.mean([record.get("staleness", [0]) for record in records]),
        "correlation": correlations.mean(),
    }
    return {"lr": rate, **{name: round(float(value), 6) for name, value in line.items()}}


def best_rate(runs: pd.DataFrame, condition: Condition) -> float:
    """Returns the rate with the best mean accuracy on D_val over the tuning seeds."""
    same = runs[runs.seed.isin(TUNING_SEEDS)]
    for name in ("data", "alpha", "clock", "server", "weights"):
        same = same[same[name] == getattr(condition, name)]
    return float(same.groupby("lr").val_accuracy.mean().idxmax())


def run(path: Path, files: Mapping[str, Path]) -> None:
    """Runs what is missing in a table of runs."""
    keys = [*Condition._fields, "lr"]
    rounds: dict[Condition, int] = {}
    for is_primary, seeds in itertools.product((True, False), (TUNING_SEEDS, SEEDS)):
        runs = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=keys)
        known = {*runs[keys].itertuples(index=False, name=None)}
        for condition in conditions([*files], seeds, is_primary):
            file, same = files[condition.data], condition._replace(weights="uniform")
            for rate in RATES if seeds is TUNING_SEEDS else [best_rate(runs, condition)]:
                if (*condition, rate) in known:
                    continue
                if same not in rounds:
                    rounds[same] = num_rounds(same, file)
                line = condition._asdict() | measured(condition, file, rate, rounds[same])
                table = pd.DataFrame([line])
                table.to_csv(path, mode="a", header=not path.exists(), index=False)


def contrasts(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns every contrast by data, alpha and clock: paired by seed, with Holm's correction within the contrast."""
    runs = runs[runs.seed.isin(SEEDS)].assign(gap=runs.fast - runs.slow)
    lines = []
    for name, (column, first, second) in CONTRASTS.items():
        for place, group in runs.groupby(["data", "alpha", "clock"], sort=False):
            values = group.pivot_table(column, "seed", ["server", "weights"], dropna=False)
            pairs = values[[first, second]].dropna()
            if len(pairs) > 1:
                test = stats.ttest_rel(pairs[first], pairs[second])
                low, high = test.confidence_interval()
                difference = (pairs[first] - pairs[second]).mean()
                p = test.pvalue if difference else 1.0  # of equal runs it is not a number
                lines.append((name, *place, len(pairs), difference, low, high, p))
    columns = ["contrast", "data", "alpha", "clock", "seeds", "difference", "low", "high", "p"]
    table = pd.DataFrame(lines, columns=columns)
    table["p_holm"] = table.groupby("contrast").p.transform(lambda p: statistics.holm([*p]))
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the study and writes its tables."""
    parser = machine.parser(__doc__)
    parser.add_argument("cifar10", type=Path, metavar="CIFAR10.npz")
    parser.add_argument("dermamnist", type=Path, metavar="DERMAMNIST.npz")
    parser.add_argument("--folder", type=Path, default=machine.RESULTS / "slow_clients")
    args = parser.parse_args(argv)
    path = args.folder / "runs.csv"
    run(path, {"CIFAR-10": args.cifar10, "DermaMNIST": args.dermamnist})
    table = contrasts(pd.read_csv(path))
    table.to_csv(args.folder / "contrasts.csv", index=False, float_format="%.6g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
