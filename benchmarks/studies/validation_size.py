"""How large a validation set must be: its size, origin and labels, and how reliable FedVG's weights are.

    python -m benchmarks.studies.validation_size DIR FEATURES.npz size reliability

DIR/all is the sweep of configs/sweeps/validation_size.toml, whose tuned rates all parts take. Runs the parts that the
command names in DIR, where they continue, and writes runs.csv, reliability.csv and contrasts.csv of all finished runs
to benchmarks/results/validation_size. `placebo`, `chosen`, `labels`, `origin`, `classes` and `fitted` are more parts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies import uses
from fedvg_jax.study import statistics
from fedvg_jax.study.collect import collect

RESULTS = machine.RESULTS / "validation_size"
PAIR = (10, 30, 100, 300, 500)
"""Rows of each of two disjoint sets."""

SIZES = (10, 30, 100, 300, 1000)
CLIENTS = [("client", f"clients:{share}", 0.1) for share in (0.01, 0.05, 0.2)]
HELD_OUT = [(kind, "clients", rows / 12000) for rows in (10, 30, 100) for kind in ("global", "stratified")]
ORIGINS = [*CLIENTS, ("global", "clients", 0.1), *HELD_OUT]
FILES = ("ten_classes", "eight_classes", "five_classes", "imagenet")
PARTS: dict[str, tuple[str, Any, Any]] = {
    "size": ("fedvg", "validation.size", SIZES),
    "reliability": ("fedvg", (), ()),
    "placebo": ("permuted(fedvg)", "validation.size", SIZES),
    "chosen": ("samples", "validation.size", SIZES),
    "labels": ("fedvg", "validation.label_noise", (0.1, 0.2, 0.4)),
    "origin": ("fedvg", ("holdout", "validation.source", "val_ratio"), ORIGINS),
    "classes": ("fedvg", "validation.data_dir", FILES),
    "fitted": ("fitted", "validation.size", SIZES),
}
"""Part -> weighting, settings that vary, and their values. The sets of `classes` are NAME.npz beside FEATURES.npz."""

COLUMNS = ("part", "alpha", "method", "size", "label_noise", "source", "file", "holdout", "val_ratio", "seed", "lr")
COLUMNS += ("final", "at_best_val", "own_weight")
OF_PAIRS = ("alpha", "seed", "rows", "rank_correlation", "total_variation", "signal")
OF_CONTRASTS = ("contrast", "rows", "alpha", *uses.Contrast._fields, "outcome")


def paired(task: fv.Task, sizes: Sequence[int] = PAIR) -> fv.Weighting:
    """Returns FedVG, whose history also has every client's score by two disjoint random sets of every size, [K, 2]."""
    base = fv.weightings.fedvg(task)

    def signal(hyper, client, data):
        rows = data.scoring.reshape(-1)
        order = rows[jnp.argsort(jnp.where(rows < 0, 2, jax.random.uniform(jax.random.key(0), rows.shape)))]
        enough = jnp.pad(order, (0, 2 * max(sizes)), constant_values=-1)  # a check of the weighting has few rows
        tables = (data.scoring, *(enough[: 2 * n].reshape(1, n, 2)[..., half] for n in sizes for half in (0, 1)))
        return [base.signal(hyper, client, data._replace(scoring=table)) for table in tables]

    def detail(measured):
        scores = [base.score(one) for one in measured[1:]]
        return {f"pair_{n}": jnp.stack(scores[2 * i : 2 * i + 2], -1) for i, n in enumerate(sizes)}

    def weigh(hyper, measured, view):
        return base.weigh(hyper, measured[0], view)

    return base._replace(signal=signal, weigh=weigh, score=lambda m: base.score(m[0]), detail=detail, terms=())


def agreement(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Returns rank correlation, total variation and the share of signal of two sets' weights, [rounds, clients]."""
    ranks = [stats.spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    a, b = (weights - weights.mean(1, keepdims=True) for weights in (first, second))
    signal = (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())
    return float(np.mean(ranks)), float(np.abs(first - second).sum(1).mean() / 2), float(signal)


def rows_for_half(sizes: Sequence[int], shares: Sequence[float]) -> float:
    """Returns the size at which the share of signal first reaches 1/2, linear in log n; inf where it does not.

    >>> round(rows_for_half([10, 1000], [0.4, 0.6]))
    100
    """
    above = next((i for i, share in enumerate(shares) if share >= 0.5), len(sizes))
    if above in (0, len(sizes)):
        return np.inf if above else float(sizes[0])
    around = slice(above - 1, above + 1)
    return float(np.exp(np.interp(0.5, shares[around], np.log(sizes[around]))))


def finished(folder: Path, *parts: str) -> Iterator[tuple[str, Any]]:
    """Yields (part, run) of the finished runs in a folder of sweeps."""
    for part in filter(lambda part: (folder / part / "sweep.json").exists(), parts):
        cells = collect([folder / part], partial=True).cells.values()
        yield from ((part, run) for cell in cells for _, run in sorted(cell.runs.items()))


def row_of(part: str, run: Any) -> list[Any]:
    """Returns a line of runs.csv; the last column is the mean weight of D_val's clients over that of the others."""
    c, own = run.config, run.partition["validation"].get("clients") or []
    clients, weights = (np.array([record[name] for record in run.records]) for name in ("clients", "weights"))
    is_own = np.isin(clients, own)
    ratio = f"{weights[is_own].mean() / weights[~is_own].mean():.4g}" if is_own.any() else ""
    accuracies = [f"{100 * run.history.summary[f'test_accuracy_{which}']:.7f}" for which in ("final", "at_best_val")]
    of_set = c.validation.size, c.validation.label_noise, c.validation.source, Path(c.validation.data_dir or "").stem
    return [part, c.alpha, c.weighting, *of_set, c.holdout, f"{c.val_ratio:.4g}", c.seed, c.lr, *accuracies, ratio]


def reliability_rows(run: Any) -> Iterator[list[Any]]:
    """Yields the lines of reliability.csv of a run: alpha, seed, rows, and the three values of `agreement`."""
    for n in PAIR:
        inverse = 1 / np.array([record[f"pair_{n}"] for record in run.records])
        first, second = np.moveaxis(inverse / inverse.sum(1, keepdims=True), 2, 0)
        yield [run.config.alpha, run.config.seed, n, *(f"{value:.6f}" for value in agreement(first, second))]


def contrasts(runs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Returns the lines of contrasts.csv from those of runs.csv: one family of size, one of labels and classes."""
    values: dict[tuple, uses.Values] = {}
    for part, alpha, method, size, noise, _, file, _, _, seed, _, final, best, _ in runs:
        of_set = {"size": size, "placebo": size, "chosen": size, "labels": noise, "classes": file}.get(part, 0)
        if part != "origin":
            values.setdefault((part, method, of_set, alpha), {})[seed, seed] = float(
                best if method == "samples" else final
            )
    rows = []
    for family in (("V1", "V2", "V3", "V4"), ("labels", "classes")):
        compared = {}
        for alpha in (0.05, 0.1):
            at = lambda part, method, of_set=0: values.get((part if of_set else "all", method, of_set, alpha), {})  # noqa: B023, E731
            full = at("all", "fedvg")
            pairs = {("V1", n): (full, at("size", "fedvg", n)) for n in SIZES}
            for n in (*SIZES, 0):
                controls = at("placebo", "permuted(fedvg)", n), at("all", "uniform"), at("chosen", "samples", n)
                pairs |= {(f"V{i}", n): (at("size", "fedvg", n), c) for i, c in enumerate(controls, 2)}
            pairs |= {("labels", noise): (full, at("labels", "fedvg", noise)) for noise in (0.1, 0.2, 0.4)}
            pairs |= {("classes", file): (full, at("classes", "fedvg", file)) for file in FILES[1:3]}
            compared |= {(*k, alpha): statistics.compare(*p) for k, p in pairs.items() if k[0] in family and all(p)}
        corrected = statistics.holm([c.t_p for c in compared.values()])
        found = [uses.contrast_of(c, p) for c, p in zip(compared.values(), corrected, strict=True)]
        rows += [[*key, *c, c.outcome] for key, c in zip(compared, found, strict=True)]
    return rows


def run_part(part: str, folder: Path, features: Path) -> None:
    """Runs what is missing of a part, with the rates of DIR/all."""
    weighting, names, values = PARTS[part]
    tuned = {run.config.alpha: run.config for _, run in finished(folder, "all") if run.config.weighting == weighting}
    config = replace(next(iter(tuned.values())), data_dir=features, out=None)
    if part == "classes":
        outside = replace(config.validation, source="npz")
        config = replace(config, validation=outside, departures="no-external-copies")
        values = [str(features.with_name(f"{name}.npz")) for name in values]
    axes = {
        ("alpha", "lr"): [(alpha, run.lr) for alpha, run in sorted(tuned.items())],
        ("seed", "partition_seed"): [(i, i) for i in range(10)],
    }
    own = paired if part == "reliability" else None
    fv.run_sweep(config, axes | ({names: values} if names else {}), folder / part, progress=True, weighting=own)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the named parts and writes the tables."""
    parser = machine.parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("features", type=Path, metavar="FEATURES.npz")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    args = parser.parse_args(argv)
    for part in args.parts:
        run_part(part, args.folder, args.features)
    lines = list(finished(args.folder, "all", *PARTS))
    runs = [row_of(*line) for line in lines if line[0] != "reliability"]
    pairs = [row for part, run in lines if part == "reliability" for row in reliability_rows(run)]
    tables = {"runs": (COLUMNS, runs), "reliability": (OF_PAIRS, pairs), "contrasts": (OF_CONTRASTS, contrasts(runs))}
    RESULTS.mkdir(exist_ok=True)
    for name, (header, rows) in tables.items():
        with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
