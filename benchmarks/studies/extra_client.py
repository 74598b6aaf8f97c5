"""D_val as one more client: FedAvg with a client N + 1 that trains on the validation rows of all others.

    python -m benchmarks.studies.extra_client FEATURES.npz features_covid -- --clients 20 --join-ratio 0.25

The client is sampled like every other, and D_val remains the validation set, so its accuracy is one of training rows.
Settings, seeds and the learning rate's tuning are those of configs/sweeps/features_uses.toml; options after -- change
settings. Writes extra_client.csv beside the runs.csv that `benchmarks.studies.uses` made.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies import uses
from fedvg_jax import commands

SWEEP = uses.ROOT / "configs" / "sweeps" / "features_uses.toml"
COLUMNS = ("alpha", "method", "seed", "partition_seed", "final", "at_best_val", *uses.MORE)


def with_extra_client(config: fv.Config) -> fv.History:
    """Returns the history of a run whose clients are joined by one with the rows of D_val."""
    sim = fv.simulation(config)
    rows = np.concatenate(sim.partition.val)
    copies = np.arange(len(sim.arrays.x), len(sim.arrays.x) + len(rows))  # a partition has every row once
    x, y = (np.concatenate([values, values[rows]]) for values in (sim.arrays.x, sim.arrays.y))
    none = rows[:0]
    partition = ([*sim.partition.train, copies], [*sim.partition.val, none], [*sim.partition.test, none])
    cohort = round(config.join_ratio * config.clients)
    own = replace(config, clients=config.clients + 1, join_ratio=cohort / (config.clients + 1))
    return fv.run(own, data=sim.arrays._replace(x=x, y=y, groups=None), partition=partition)


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes the learning rate at every alpha, runs all seeds, and writes the results."""
    parser = machine.parser(__doc__)
    parser.add_argument("features", type=Path, metavar="FEATURES.npz")
    parser.add_argument("name", choices=uses.SETS, metavar="NAME", help=", ".join(uses.SETS))
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTION ...", help="options of fedvg_jax.sim")
    args = parser.parse_args(argv)
    sweep = tomllib.loads(SWEEP.read_text(encoding="utf-8"))
    tables = ("title", "axes", "zip", "tune", "tune_seeds")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in sweep.items() if name not in tables]
    options = [word for word in args.options if word != "--"]
    base = commands.parse([*words, f"--data-dir={args.features}", "--weighting=samples", *options])

    def run(alpha: str, lr: float, seed: int) -> fv.History:
        return with_extra_client(replace(base, alpha=float(alpha), lr=lr, seed=seed, partition_seed=seed))

    def score(alpha: str, lr: float) -> float:
        first, last = map(int, sweep["tune_seeds"].split(":"))
        return np.mean([run(alpha, lr, seed).records[-1]["val_accuracy"] for seed in range(first, last)])

    written = []
    for alpha in uses.ALPHAS:
        rates = sweep["tune"]["lr"]
        lr = max(rates, key=dict(zip(rates, [score(alpha, lr) for lr in rates], strict=True)).__getitem__)
        first, last = map(int, sweep["axes"]["seed"].split(":"))
        for seed in track(range(first, last), f"alpha {alpha}, lr {lr:g}", console=Console(stderr=True)):
            history = run(alpha, lr, seed)
            accuracies = [100 * history.summary[f"test_accuracy_{which}"] for which in ("final", "at_best_val")]
            shown = [f"{accuracy:.7f}" for accuracy in accuracies]
            written.append([alpha, uses.EXTRA, seed, seed, *shown, *uses.more(history.records, lr)])
    with (uses.RESULTS / args.name / "extra_client.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *written])
    return 0


if __name__ == "__main__":
    sys.exit(main())
