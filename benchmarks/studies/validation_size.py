"""How large a validation set must be: its size, origin and labels, and how reliable FedVG's weights are.

    python -m benchmarks.studies.validation_size DIR FEATURES.npz size reliability

DIR/all is the sweep of configs/sweeps/validation_size.toml. All parts take the rates that it tuned. Runs the named
parts in DIR, where they continue, and writes runs.csv, reliability.csv and contrasts.csv of all finished runs to the
folder of benchmarks/results that has DIR's name. More parts are `placebo`, `chosen`, `fitted`, `labels`,
`origin`, `classes` and `external`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import stats

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies import uses
from fedvg_jax.config.options import effective
from fedvg_jax.study import statistics
from fedvg_jax.study.collect import collect

PAIR = (10, 30, 100, 300, 500)
"""Rows of each of two disjoint sets."""

SIZES = "validation.size", (10, 30, 100, 300, 1000)
OF_WEIGHTING = {
    "size": "fedvg",
    "placebo": "permuted(fedvg)",
    "chosen": "samples",
    "fitted": "fitted",
}
PARTS: dict[str, tuple[str, Any, Any]] = {
    part: (name, *SIZES) for part, name in OF_WEIGHTING.items()
} | {
    "reliability": ("fedvg", (), ()),
    "labels": ("fedvg", "validation.label_noise", (0.1, 0.2, 0.4)),
    "origin": ("fedvg", ("holdout", "validation.source", "val_ratio"), ()),
    "classes": ("fedvg", "validation.data_dir", ("eight_classes", "five_classes")),
    "external": ("fedvg", "validation.data_dir", ("ten_classes", "imagenet")),
}
"""Part -> weighting, settings that vary, and their values; files are NAME.npz beside FEATURES.npz."""

FAMILIES = {"V1": 0, "V2": 0, "V3": 0, "V4": 0, "labels": 1, "classes": 1}
"""Contrast -> family of Holm's correction; the others have none, and no outcome."""

SETTINGS = ("alpha", "weighting", "seed", "partition_seed", "lr")


def paired(task: fv.Task, sizes: Sequence[int] = PAIR) -> fv.Weighting:
    """Returns FedVG. Its history also has every client's score by two disjoint random sets of every size, [K, 2]."""
    base = fv.weightings.fedvg(task)

    def signal(hyper, client, data):
        rows = data.scoring.reshape(-1)
        order = rows[
            jnp.argsort(jnp.where(rows < 0, 2, jax.random.uniform(jax.random.key(0), rows.shape)))
        ]
        # a check of the weighting has few rows
        enough = jnp.pad(order, (0, 2 * max(sizes)), constant_values=-1)
        tables = [
            data.scoring,
            *(enough[: 2 * n].reshape(1, n, 2)[..., half] for n in sizes for half in (0, 1)),
        ]
        return [base.signal(hyper, client, data._replace(scoring=table)) for table in tables]

    def detail(measured):
        scores = jnp.stack([base.score(one) for one in measured[1:]], -1)
        return {f"pair_{n}": scores[:, 2 * i : 2 * i + 2] for i, n in enumerate(sizes)}

    of_all = {
        "weigh": lambda h, m, view: base.weigh(h, m[0], view),
        "score": lambda m: base.score(m[0]),
    }
    return base._replace(signal=signal, detail=detail, terms=(), **of_all)


def agreement(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Returns rank correlation, total variation and the share of signal of two sets' weights, [rounds, clients]."""
    ranks = [stats.spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    a, b = (weights - weights.mean(1, keepdims=True) for weights in (first, second))
    signal = (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())
    return float(np.mean(ranks)), float(np.abs(first - second).sum(1).mean() / 2), float(signal)


def rows_for_half(sizes: Sequence[int], shares: Sequence[float]) -> float:
    """Returns the size at which the share of signal first reaches 1/2, linear in log n, within the first and last size.

    >>> round(rows_for_half([10, 1000], [0.4, 0.6]))
    100
    """
    return float(np.exp(np.interp(0.5, np.maximum.accumulate(shares), np.log(sizes))))


def finished(folder: Path, *parts: str) -> Iterator[tuple[str, Any]]:
    """Yields (part, run) of the finished runs in a folder of sweeps."""
    for part in filter(lambda part: (folder / part / "sweep.json").exists(), parts):
        groups = collect([folder / part], partial=True).groups.values()
        yield from ((part, run) for group in groups for _, run in sorted(group.runs.items()))


def runs(folder: Path) -> pd.DataFrame:
    """Returns a line for every run; `own_weight` is the mean weight of D_val's clients over that of the others."""
    lines = []
    for part, run in finished(folder, "all", *(part for part in PARTS if part != "reliability")):
        settings, of_set = effective(run.config), run.partition["validation"]
        names = np.atleast_1d(PARTS[part][1]) if part in PARTS else []
        varied = [Path(str(settings[name])).name.removesuffix(".npz") for name in names]
        clients = np.array([record["clients"] for record in run.records])
        weights = np.array([record["weights"] for record in run.records])
        is_own = np.isin(clients, of_set.get("clients", []))
        own = round(weights[is_own].mean() / weights[~is_own].mean(), 4) if is_own.any() else None
        line = {"part": part, "set": " ".join(varied) or "all", "rows": of_set["samples"]}
        line |= {name: settings[name] for name in SETTINGS}
        for choice in ("final", "at_best_val"):
            line[choice] = round(100 * run.history.summary[f"test_accuracy_{choice}"], 7)
        lines.append(line | {"own_weight": own})
    return pd.DataFrame(lines)


def reliability(folder: Path) -> pd.DataFrame:
    """Returns a line for every run and size, with the three values of `agreement`."""
    lines = []
    for (_, run), n in itertools.product(finished(folder, "reliability"), PAIR):
        inverse = 1 / np.array([record[f"pair_{n}"] for record in run.records])
        first, second = np.moveaxis(inverse / inverse.sum(1, keepdims=True), 2, 0)
        lines.append((run.config.alpha, run.config.seed, n, *agreement(first, second)))
    columns = ["alpha", "seed", "rows", "rank_correlation", "total_variation", "signal"]
    return pd.DataFrame(lines, columns=columns).round(dict.fromkeys(columns[3:], 6))


def contrasts(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the protocol's contrasts of the lines of `runs`, corrected within their family."""
    accuracy = runs.at_best_val.where(runs.weighting == "samples", runs.final)
    values = runs.assign(accuracy=accuracy).pivot_table(
        "accuracy", ["seed", "partition_seed"], ["weighting", "set", "alpha"]
    )
    lines = []
    settings = runs[runs.weighting == "fedvg"][["part", "set", "alpha"]].drop_duplicates()
    for part, which, alpha in settings.values:
        ours = "fedvg", which, alpha
        pairs = {"V1" if part == "size" else part: (("fedvg", "all", alpha), ours)}
        if part in ("all", "size"):
            controls = {"V2": ("permuted(fedvg)", which), "V3": ("uniform", "all")}
            controls["V4"] = "samples", which
            pairs |= {name: (ours, (*control, alpha)) for name, control in controls.items()}
        pairs.pop("all", None)
        for name, pair in pairs.items():
            if {*pair} <= {*values}:
                compared = statistics.compare(*(values[key].dropna().to_dict() for key in pair))
                lines.append((name, which, alpha, *uses.contrast_of(compared, compared.t_p)))
    columns = ["contrast", "set", "alpha", *uses.Contrast._fields]
    table = pd.DataFrame(lines, columns=columns).sort_values("contrast", kind="stable")
    family = table.contrast.map(FAMILIES)
    table["p"] = table.groupby(family).p.transform(lambda p: statistics.holm([*p])).fillna(table.p)
    outcomes = [uses.Contrast(*line[3:]).outcome for line in table.itertuples(index=False)]
    return table.assign(outcome=np.where(family.isna(), "", outcomes))


def origins(num_clients: int, num_rows: int) -> list[tuple[str, str, float]]:
    """Returns holdout, source and share of validation rows: of 1, 5 and 20 clients, or held out first."""
    of_clients = [("client", f"clients:{number / num_clients}", 0.1) for number in (1, 5, 20)]
    held_out = [
        (kind, "clients", rows / num_rows)
        for rows in (10, 30, 100)
        for kind in ("global", "stratified")
    ]
    return [*of_clients, ("global", "clients", 0.1), *held_out]


def run_part(part: str, folder: Path, features: Path) -> None:
    """Runs what is missing of a part, with the rates of DIR/all."""
    weighting, names, values = PARTS[part]
    tuned = {
        run.config.alpha: run
        for _, run in finished(folder, "all")
        if run.config.weighting == weighting
    }
    some = next(iter(tuned.values()))
    config = replace(some.config, data_dir=features, out=None)
    if names == SIZES[0]:
        values = [size for size in values if size < some.partition["validation"]["samples"]]
    if part == "origin":
        with np.load(features) as file:
            values = origins(config.clients, len(file["y_train"]) + len(file["y_test"]))
    axes = {
        ("alpha", "lr"): [(alpha, run.config.lr) for alpha, run in sorted(tuned.items())],
        ("seed", "partition_seed"): [(seed, seed) for seed in range(10)],
    }
    if names == "validation.data_dir":
        axes |= {"validation.source": ["npz"], "reference": ["no-external-copies"]}
        values = [str(features.with_name(f"{name}.npz")) for name in values]
    if names:
        axes[names] = values
    weighting = paired if part == "reliability" else None
    fv.run_sweep(config, axes, folder / part, progress=True, weighting=weighting)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the named parts and writes the tables."""
    parser = machine.parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("features", type=Path, metavar="FEATURES.npz")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    args = parser.parse_args(argv)
    for part in args.parts:
        run_part(part, args.folder, args.features)
    of_runs = runs(args.folder)
    tables = {"runs": of_runs, "reliability": reliability(args.folder)}
    tables["contrasts"] = contrasts(of_runs)
    results = machine.RESULTS / args.folder.name
    results.mkdir(exist_ok=True)
    for name, table in tables.items():
        table.to_csv(results / f"{name}.csv", index=False, float_format="%.9g", lineterminator="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
