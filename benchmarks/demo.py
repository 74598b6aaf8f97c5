"""Measures test accuracy on the digits demonstration under FedVG's weights and four others, with paired differences.

    python -m benchmarks.demo [--seeds 5] [--rounds 100] [--vary-partition] [--out FILE.json] [--picture FILE.png]
    python -m benchmarks.demo --seeds 20 --vary-partition --out benchmarks/results/demo.json

Runs the default settings (alpha 0.05) once per seed and weighting; all weightings of a seed share the initial model,
cohorts and minibatches. All seeds share the default partition; with --vary-partition each seed draws its own. Prints
mean accuracies and 95 % Student's t intervals of the paired differences, and writes every run to FILE.json. The second
command, which takes many minutes, made the table of docs/tutorials/compare_methods.md. The picture shows mean test
accuracy over rounds, with bands of one standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

import fedvg_jax
from benchmarks import machine

ALPHA = 0.05
WEIGHTINGS = {
    "FedVG": "fedvg",
    "FedAvg": "samples",
    "uniform": "uniform",
    "FedVG's weights, permuted": "permuted(fedvg)",
    "inverse samples": "inverse_samples",
}
"""Name in the table -> `--weighting`. "uniform" and "permuted" are controls without information on the clients."""

CHOICES = {"final": "test_accuracy_final", "at_best_val": "test_accuracy_at_best_val", "max": "test_accuracy_max"}
"""Choice of the round -> name of its test accuracy in the summary."""


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Returns the mean and the 95 % Student's t interval, which is infinite for a single value.

    >>> interval([1.0, 2.0, 3.0])  # t(0.975, 2 degrees of freedom) = 4.302653; deviation 1
    Interval(mean=2.0, low=-0.484, high=4.484)
    """
    count = len(values)
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5) if count > 1 else float("inf")
    return Interval(round(mean, 6), round(mean - half, 3), round(mean + half, 3))


def differences(accuracy: dict[str, dict[str, list[float]]], choice: str = "final") -> dict[str, Interval]:
    """Returns FedVG's accuracy minus that of each other weighting, in percentage points, paired by seed.

    Args:
        accuracy: weighting -> choice of round -> test accuracy of every seed.
        choice: of `CHOICES`.
    """
    points = {name: 100 * np.asarray(runs[choice]) for name, runs in accuracy.items()}
    return {name: interval(points["FedVG"] - other) for name, other in points.items() if name != "FedVG"}


def measure(seeds: int, rounds: int, varies_partition: bool = False) -> dict[str, dict[str, list]]:
    """Runs all weightings and seeds.

    Returns:
        weighting -> choice of round -> test accuracy of every seed. `curve` has the accuracies of every seed at the
        evaluated `rounds`.
    """
    results: dict[str, dict[str, list]] = {}
    for name, weighting in WEIGHTINGS.items():
        results[name] = {choice: [] for choice in (*CHOICES, "curve")}
        for seed in track(range(seeds), name, console=Console(stderr=True)):
            config = fedvg_jax.Config(alpha=ALPHA, rounds=rounds, weighting=weighting, seed=seed)
            config = replace(config, partition_seed=seed) if varies_partition else config
            history = fedvg_jax.run(config)
            for choice, key in CHOICES.items():
                results[name][choice].append(round(history.summary[key], 6))
            evaluated = [r for r in history.records if "test_accuracy" in r]
            results[name]["rounds"] = [r["round"] for r in evaluated]
            results[name]["curve"].append([round(r["test_accuracy"], 4) for r in evaluated])
    return results


STYLES = {
    "FedVG": ("#0072b2", "-"),
    "FedAvg": ("#d55e00", "--"),
    "uniform": ("#009e73", "-."),
    "FedVG's weights, permuted": ("#7f7f7f", ":"),
    "inverse samples": ("#cc79a7", (0, (1, 1))),
}
"""Colour (safe for colour-blind readers) and line style of every weighting."""


def plot(result: dict[str, Any], path: Path) -> None:
    """Plots the learning curves: means over seeds, bands of one standard deviation, labels at the last round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    ends, last = {}, 0
    for name, runs in result["accuracy"].items():
        rounds, accuracy = runs["rounds"], 100 * np.asarray(runs["curve"])  # [evaluations], [seeds, evaluations]
        mean, deviation = accuracy.mean(0), accuracy.std(0, ddof=1) if len(accuracy) > 1 else 0
        colour, line = STYLES[name]
        axes.plot(rounds, mean, color=colour, linestyle=line)
        axes.fill_between(rounds, mean - deviation, mean + deviation, color=colour, alpha=0.12, linewidth=0)
        ends[name], last = mean[-1], rounds[-1]
    low, high = axes.get_ylim()
    low = max(low, high - 60)  # with the first rounds' range, the differences of the last rounds would be invisible
    height = np.inf
    for name, value in sorted(ends.items(), key=lambda item: -item[1]):  # labels must not overlap
        height = min(value, height - (high - low) / 18)
        label = f"{name} {value:.1f}"
        axes.annotate(label, (last, value), (last * 1.02, height), color=STYLES[name][0], va="center", fontsize=9)
    settings = result["settings"]
    axes.set_xlim(0, last * 1.45)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= last])
    axes.set_ylim(low, high)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(
        f"Digits, alpha {settings['alpha']}, {settings['seeds']} seeds: mean and deviation", fontsize=10, loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def table(result: dict[str, Any]) -> Table:
    """Returns the table for the terminal: final accuracies and paired differences."""
    rows = Table("weights", "test accuracy, %", "FedVG minus these, points [95 %]", title="final round")
    gaps = differences(result["accuracy"])
    for name, runs in result["accuracy"].items():
        gap = gaps.get(name)
        difference = f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]" if gap else ""
        rows.add_row(name, f"{100 * np.mean(runs['final']):.2f}", difference)
    return rows


def main(argv: list[str] | None = None) -> int:
    """Runs the demonstration and writes its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--vary-partition", action="store_true", help="draw a partition for every seed")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write every run")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="plot the learning curves")
    args = parser.parse_args(argv)
    command = f"python -m benchmarks.demo --seeds {args.seeds} --rounds {args.rounds}"
    command += " --vary-partition" * args.vary_partition
    description = machine.describe(command.split())
    accuracy = measure(args.seeds, args.rounds, args.vary_partition)
    settings = {"dataset": "digits", "alpha": ALPHA, "rounds": args.rounds, "seeds": args.seeds}
    result = {
        "machine": machine.add_final_load(description),
        "settings": settings | {"partitions": args.seeds if args.vary_partition else 1},
        "weightings": WEIGHTINGS,
        "accuracy": accuracy,
    }
    if args.out:
        machine.write(args.out, result)
    if args.picture:
        plot(result, args.picture)
    Console().print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
