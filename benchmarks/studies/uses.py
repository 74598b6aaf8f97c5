"""What a validation set on the server is worth: contrasts of runs, and runs of a sweep as a folder of results.

    python -m benchmarks.studies.uses DIR features_covid --command COMMAND --commit HASH

Reads a sweep's folder and fills a folder of benchmarks/results: runs.csv of a report with three columns more, which are
the tuned learning rate, balanced test accuracy in the final round, and how unequal the weights are, the median over
rounds of the largest over the smallest positive weight; and run.json with the command that `--command` gives, the
commit, the machine and the date.
"""

from __future__ import annotations

import io
import itertools
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks import machine
from fedvg_jax.study import statistics, tables
from fedvg_jax.study.collect import collect as study_of
from fedvg_jax.study.markup import csv_text

ROOT, RESULTS = machine.ROOT, machine.RESULTS

LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Folders of results, methods and contrasts, explained in the file."""

SETS, WHOLE, ADAPTERS = LISTED["sets"], LISTED["whole"], LISTED["adapters"]
HIDDEN, RANDOM, PRETRAINED = LISTED["hidden"], LISTED["random"], LISTED["pretrained"]
METHODS, USES, CONTROLS = LISTED["methods"], LISTED["uses"], LISTED["controls"]

ALPHAS = ("0.05", "0.1", "0.5")

FEDVG = "fedvg"
CHOSEN = "fedavg, round best on D_val"
DEFAULTS = (", norm l1", ", granularity modelwise")
"""Settings of FedVG that a method's name has only where they vary."""

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
        runs = pd.read_csv(path, dtype={"alpha": str})
        runs = runs[runs[choice].notna()]  # without those that diverged
        for run in runs.to_dict("records"):
            seeds = run["seed"], run["partition_seed"]
            method = re.sub("|".join(DEFAULTS), "", run["method"])
            values.setdefault((run["alpha"], method), {})[seeds] = run[choice]
            if method == "fedavg" and choice == "final":
                values.setdefault((run["alpha"], CHOSEN), {})[seeds] = run["at_best_val"]
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
    pretrained, random = (_differences(name) for name in (PRETRAINED[folder], folder))
    compared = {
        key: statistics.compare(pretrained[key], random[key]) for key in random if key in pretrained
    }
    return {key: contrast_of(c, c.t_p) for key, c in compared.items()}


def _differences(folder: str) -> dict[tuple[str, str], Values]:
    """Returns (hypothesis, alpha) -> FedVG minus its control by seeds."""
    return {
        key: {seeds: ours[seeds] - control[seeds] for seeds in ours if seeds in control}
        for key, (ours, control) in pairs(read(folder)).items()
    }


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
    table = pd.read_csv(io.StringIO(csv_text(tables.runs(study))), dtype=str)
    runs = []  # in the order of the table
    for condition, method in itertools.product(study.conditions, study.methods):
        runs += [run for _, run in sorted(study.group(method, condition).runs.items())]
    if "alpha" not in table:
        table.insert(0, "alpha", f"{runs[0].config.alpha:g}")
    table[[*MORE]] = [more(run.records, run.config.lr) for run in runs]
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "runs.csv", index=False, lineterminator="\n")
    about = machine.describe([])
    written = {
        "command": command,
        "commit": commit,
        "machine": f"{about['processor']}, {about['cores']} cores",
        "date": about["date"][:10],
        "runs": len(table),
    }
    machine.write(folder / "run.json", written)


def more(records: Sequence[Mapping[str, Any]], lr: float) -> list[str]:
    """Returns the values of `MORE`: learning rate, balanced accuracy in percent, and the weights' inequality."""
    evaluated = [r for r in records if r.get("test_balanced_accuracy") is not None]
    ratios = []
    for record in records:
        weights = np.array(record["weights"], float).reshape(len(record["clients"]), -1).mean(1)
        positive = weights[weights > 0]
        if positive.size:
            ratios.append(positive.max() / positive.min())
    balanced = 100 * evaluated[-1]["test_balanced_accuracy"]
    return [f"{lr:g}", f"{balanced:.7f}", f"{np.median(ratios):.4g}"]


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
