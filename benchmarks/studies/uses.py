"""What a validation set on the server is worth: contrasts of runs, and runs of a sweep as a folder of results.

    python -m benchmarks.studies.uses DIR features_covid --command COMMAND --commit HASH

Reads a sweep's folder and fills a folder of benchmarks/results: runs.csv of a report with three columns more, which are
the tuned learning rate, balanced test accuracy in the final round, and how unequal the weights are, the median over
rounds of the largest over the smallest positive weight; and run.json with the command that `--command` gives, the
commit, the machine and the date.
"""

from __future__ import annotations

import csv
import functools
import operator
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from fedvg_jax.study import statistics, tables
from fedvg_jax.study.collect import collect as study_of
from fedvg_jax.study.markup import comma_separated

ROOT, RESULTS = machine.ROOT, machine.RESULTS

SETS = {
    "features_cifar10": "CIFAR-10",
    "features_dermamnist": "DermaMNIST, rebuilt",
    "features_covid": "chest X-rays",
    "features_tinyimagenet": "Tiny ImageNet, ten classes",
}
"""Folder of results -> data set."""

WHOLE = {"whole_network": "CIFAR-10, 12,000 images"}
"""Folder of results of clients that train all layers -> data set."""

ADAPTERS = {
    "adapters_study": "CIFAR-10, 4,000 images",
    "adapters_study_dermamnist": "DermaMNIST, rebuilt, 4,000 images",
}
"""Folder of results of clients that train adapters and a head -> data set."""

HIDDEN = {
    "hidden_cifar10": "CIFAR-10",
    "hidden_dermamnist": "DermaMNIST, rebuilt",
    "hidden_covid": "chest X-rays",
    "hidden_tinyimagenet": "Tiny ImageNet, ten classes",
}
"""Folder of results of heads with two hidden layers -> data set."""

RANDOM = {
    "random_covid": "chest X-rays",
    "random_dermamnist": "DermaMNIST, rebuilt",
    "random_tinyimagenet": "Tiny ImageNet, ten classes",
    "random_whole_network": "all layers, CIFAR-10, 12,000 images",
}
"""Folder of results of the same network with random weights, its features or all its layers -> data set."""

PRETRAINED = {folder: folder.replace("random", "features") for folder in RANDOM} | {
    "random_whole_network": "whole_network"
}
"""Folder of results with random weights -> that of the same runs with pretrained ones."""

METHODS = (
    "methods_cifar10",
    "methods_cifar10_mild",
    "methods_dermamnist",
    "methods_covid",
    "methods_tinyimagenet",
)
"""Folders of results with the paper's 13 methods."""

ALPHAS = ("0.05", "0.1", "0.5")

FEDVG = "fedvg"
STEPS = "fedavg, tuning.steps 10"
CHOSEN = "fedavg, round best on D_val"
EXTRA = "fedavg, D_val as one more client"
DEFAULTS = (", norm l1", ", granularity modelwise")
"""Settings of FedVG that a method's name has only where they vary."""

USES = {
    FEDVG: "FedVG",
    "fedvg, norm l2": "FedVG, L2 norm",
    "fedvg, granularity layerwise": "FedVG, layerwise",
    "permuted(fedvg)": "placebo of FedVG",
    "val_loss": "inverse validation loss",
    "val_accuracy": "validation accuracy",
    "fltrust": "FLTrust",
    "fitted": "weights fitted on D_val",
    "uniform": "uniform weights (no use)",
    CHOSEN: "FedAvg in the round best on D_val",
    STEPS: "FedAvg, server steps on D_val",
    "uniform, tuning.steps 10": "uniform weights, server steps on D_val",
    EXTRA: "FedAvg, D_val as one more client",
}
"""Method -> what it does with D_val, in the order of the picture."""

CONTROLS = {"H1": "fedavg", "H2": "uniform", "H3": "permuted(fedvg)", "H4": STEPS}
"""Hypothesis -> method that FedVG is compared with."""

SMALLEST = 0.5
"""Points: the smallest difference worth naming."""

LEVEL = 0.05

MORE = ("lr", "balanced", "inequality")
"""Columns of runs.csv that a report's does not have."""

Values = dict[tuple[int, int], float]
"""(seed, partition seed) -> percent."""


class Contrast(NamedTuple):
    """A difference in points over paired seeds."""

    n: int
    mean: float
    low: float
    high: float
    p: float
    """Two-sided p of the paired t test, corrected within the family."""

    @property
    def outcome(self) -> str:
        """Support, refutation or undecided, by the protocol's conditions."""
        if self.mean >= SMALLEST and self.p < LEVEL:
            return "support"
        return "refutation" if self.high < SMALLEST else "undecided"


def contrast_of(comparison: statistics.Comparison, p: float) -> Contrast:
    """Returns a comparison with the p value of its family."""
    return Contrast(comparison.n, comparison.mean, *comparison.t_interval, p)


def read(folder: str, choice: str = "final") -> dict[tuple[str, str], Values]:
    """Returns (alpha, method) -> values of the runs in a folder of results; {} where there is none.

    Args:
        folder: name in benchmarks/results.
        choice: column of runs.csv.
    """
    values: dict[tuple[str, str], Values] = {}
    for path in sorted((RESULTS / folder).glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for run in filter(
                operator.itemgetter(choice), csv.DictReader(file)
            ):  # without those that diverged
                replicate = int(run["seed"]), int(run["partition_seed"])
                method = functools.reduce(
                    lambda name, default: name.replace(default, ""), DEFAULTS, run["method"]
                )
                values.setdefault((run["alpha"], method), {})[replicate] = float(run[choice])
                if method == "fedavg" and choice == "final":
                    values.setdefault((run["alpha"], CHOSEN), {})[replicate] = float(
                        run["at_best_val"]
                    )
    return values


def pairs(values: Mapping[tuple[str, str], Values]) -> dict[tuple[str, str], tuple[Values, Values]]:
    """Returns (hypothesis, alpha) -> values of FedVG and of its control, where both were run."""
    return {
        (name, alpha): (values[alpha, FEDVG], values[alpha, control])
        for name, control in CONTROLS.items()
        for alpha in ALPHAS
        if (alpha, FEDVG) in values and (alpha, control) in values
    }


def primary(values: Mapping[tuple[str, str], Values]) -> dict[tuple[str, str], Contrast]:
    """Returns (hypothesis, alpha) -> FedVG minus its control, one family with Holm's correction."""
    compared = {key: statistics.compare(*pair) for key, pair in pairs(values).items()}
    corrected = statistics.holm([c.t_p for c in compared.values()])
    return {key: contrast_of(c, p) for (key, c), p in zip(compared.items(), corrected, strict=True)}


def effects_of_pretraining(folder: str) -> dict[tuple[str, str], Contrast]:
    """Returns (hypothesis, alpha) -> contrast with pretrained weights minus that with random ones, without correction.

    Args:
        folder: one of `RANDOM`; the pretrained runs have the same seeds, partitions and cohorts.
    """
    pretrained, random = (
        {
            key: {
                seeds: value - control[seeds] for seeds, value in ours.items() if seeds in control
            }
            for key, (ours, control) in pairs(read(name)).items()
        }
        for name in (PRETRAINED[folder], folder)
    )
    compared = {
        key: statistics.compare(pretrained[key], random[key]) for key in random if key in pretrained
    }
    return {key: contrast_of(c, c.t_p) for key, c in compared.items()}


def verdict(contrasts: Sequence[Contrast]) -> str:
    """Returns the outcome that a hypothesis has at two alphas of a data set or more; undecided without one.

    >>> clear, none = Contrast(10, 1.0, 0.8, 1.2, 0.001), Contrast(10, 0.1, -0.1, 0.3, 0.4)
    >>> verdict([clear, clear, none]), verdict([none, none, clear]), verdict([clear, none])
    ('support', 'refutation', 'undecided')
    """
    outcomes = [contrast.outcome for contrast in contrasts]
    return next(
        (name for name in ("support", "refutation") if outcomes.count(name) >= 2), "undecided"
    )


def against(
    values: Mapping[tuple[str, str], Values], alpha: str, method: str, baseline: str = "fedavg"
) -> Contrast | None:
    """Returns a method minus the baseline at one alpha, without correction; None where one of them was not run."""
    if (alpha, method) not in values or (alpha, baseline) not in values:
        return None
    c = statistics.compare(values[alpha, method], values[alpha, baseline])
    return contrast_of(c, c.t_p)


# --- collecting


def collect(source: Path, folder: Path, command: str, commit: str) -> None:
    """Writes runs.csv and run.json of the finished runs in a sweep's folder."""
    study = study_of([source], partial=True)
    rows = list(csv.reader(comma_separated(tables.runs(study)).splitlines()))
    cells = [
        study.group(method, condition) for condition in study.conditions for method in study.methods
    ]
    runs = [
        run for cell in cells for _, run in sorted(cell.runs.items())
    ]  # in the order of the table
    if "alpha" not in rows[0]:  # the runs have one
        rows = [["alpha", *rows[0]], *([f"{runs[0].config.alpha:g}", *row] for row in rows[1:])]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*rows[0], *MORE])
        pairs = zip(rows[1:], runs, strict=True)
        writer.writerows([*row, *more(run.records, run.config.lr)] for row, run in pairs)
    about = machine.describe([])
    written = {
        "command": command,
        "commit": commit,
        "machine": f"{about['processor']}, {about['cores']} cores",
    }
    machine.write(
        folder / "run.json", written | {"date": about["date"][:10], "runs": len(rows) - 1}
    )


def more(records: Sequence[Mapping[str, Any]], lr: float) -> list[str]:
    """Returns the values of `MORE`: learning rate, balanced accuracy in percent, and the weights' inequality."""
    final = next(r for r in reversed(records) if r.get("test_balanced_accuracy") is not None)
    ratios = []
    for record in records:
        weights = np.array(record["weights"], float).reshape(len(record["clients"]), -1).mean(1)
        positive = weights[weights > 0]
        ratios += [positive.max() / positive.min()] if positive.size else []
    return [f"{lr:g}", f"{100 * final['test_balanced_accuracy']:.7f}", f"{np.median(ratios):.4g}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line."""
    parser = machine.parser(__doc__)
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of a sweep")
    names = (*SETS, *WHOLE, *ADAPTERS, *HIDDEN, *RANDOM, *METHODS)
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--command", required=True, help="that made the runs")
    parser.add_argument("--commit", required=True)
    args = parser.parse_args(argv)
    collect(args.source, RESULTS / args.name, args.command, args.commit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
