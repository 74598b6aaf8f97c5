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

Place = tuple[str, str]
"""(alpha, method), or (hypothesis, alpha)."""


class Contrast(NamedTuple):
    """A difference in points over paired seeds."""

    n: int
    mean: float
    low: float
    high: float
    p: float
    """Two-sided p of the paired t test, corrected within the family."""

    @property
    def interval(self) -> tuple[float, float, float]:
        """The difference and its 95 % limits."""
        return self.mean, self.low, self.high

    @property
    def outcome(self) -> str:
        """Support, refutation or undecided, by the protocol's conditions."""
        if self.mean >= SMALLEST and self.p < LEVEL:
            return "support"
        return "refutation" if self.high < SMALLEST else "undecided"


def contrast_of(comparison: statistics.Comparison, p: float) -> Contrast:
    """Returns a comparison with the p value of its family."""
    return Contrast(comparison.n, comparison.mean, *comparison.t_interval, p)


def read(folder: str, choice: str = "final") -> pd.DataFrame:
    """Returns the runs in a folder of results: a row for every pair of seeds, a column for every (alpha, method).

    Args:
        folder: name in benchmarks/results.
        choice: column of runs.csv. Runs that diverged have none.
    """
    tables = [
        pd.read_csv(p, dtype={"alpha": str}) for p in sorted((RESULTS / folder).glob("*.csv"))
    ]
    runs = pd.concat(tables)
    runs["method"] = runs.method.str.replace("|".join(DEFAULTS), "", regex=True)
    if choice == "final":
        fedavg = runs[runs.method == "fedavg"]
        runs = pd.concat([runs, fedavg.assign(method=CHOSEN, final=fedavg.at_best_val)])
    return runs.pivot_table(choice, ["seed", "partition_seed"], ["alpha", "method"], sort=False)


def compared(
    values: pd.DataFrame, alpha: str, method: str, baseline: str
) -> statistics.Comparison | None:
    """Returns the comparison of two methods in the runs of `read`; None where one of them was not run."""
    places = (alpha, method), (alpha, baseline)
    if not {*places} <= {*values}:
        return None
    return statistics.compare(*(values[place].dropna().to_dict() for place in places))


def primary(values: pd.DataFrame) -> dict[Place, Contrast]:
    """Returns (hypothesis, alpha) -> FedVG minus its control, one family with Holm's correction."""
    found = {
        (name, alpha): comparison
        for name, control in CONTROLS.items()
        for alpha in ALPHAS
        if (comparison := compared(values, alpha, FEDVG, control))
    }
    corrected = statistics.holm([c.t_p for c in found.values()])
    return {key: contrast_of(c, p) for (key, c), p in zip(found.items(), corrected, strict=True)}


def effects_of_pretraining(folder: str) -> dict[Place, Contrast]:
    """Returns (hypothesis, alpha) -> contrast with pretrained weights minus that with random ones, without correction.

    Args:
        folder: one of `RANDOM`; the pretrained runs have the same seeds, partitions and cohorts.
    """
    pretrained, random = (_differences(read(name)) for name in (PRETRAINED[folder], folder))
    both = {key: statistics.compare(pretrained[key], random[key]) for key in random}
    return {key: contrast_of(c, c.t_p) for key, c in both.items()}


def _differences(values: pd.DataFrame) -> dict[Place, dict[Any, float]]:
    """Returns (hypothesis, alpha) -> FedVG minus its control by seeds."""
    return {
        (name, alpha): (values[alpha, FEDVG] - values[alpha, control]).dropna().to_dict()
        for name, control in CONTROLS.items()
        for alpha in ALPHAS
        if {(alpha, FEDVG), (alpha, control)} <= {*values}
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
    values: pd.DataFrame, alpha: str, method: str, baseline: str = "fedavg"
) -> Contrast | None:
    """Returns a method minus the baseline at one alpha, without correction; None where one of them was not run."""
    comparison = compared(values, alpha, method, baseline)
    return comparison and contrast_of(comparison, comparison.t_p)


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
