"""The digits demonstration under FedVG's weights and under those it is compared with, with paired differences.

    python -m benchmarks.demo [--seeds 20] [--rounds 100] [--vary-partition] [--out FILE.json] [--picture FILE.png]

Every seed is one run per weighting of the default settings (alpha 0.05): for each seed the same initial model, cohorts
and minibatches. All seeds share the default partition; with --vary-partition the partition is drawn from the seed too.
Intervals are of Student's t, 95 %, on the differences seed by seed. The picture has the mean test accuracy of every
weighting over the rounds, with bands of one standard deviation over the seeds.
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

RESULT = Path(__file__).parent / "results" / "demo.json"
ALPHA = 0.05
WEIGHTINGS = {
    "FedVG": "fedvg",
    "FedAvg": "samples",
    "uniform": "uniform",
    "FedVG's weights, permuted": "permuted(fedvg)",
    "inverse samples": "inverse_samples",
}
"""Names in the table -> `--weighting`. The third and fourth are controls: no weights, and no information in them."""

CHOICES = {"final": "test_accuracy_final", "at_best_val": "test_accuracy_at_best_val", "max": "test_accuracy_max"}
"""Which round's test accuracy -> its name in the summary."""


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of Student's t; of one value the interval is not finite.

    >>> interval([1.0, 2.0, 3.0])  # t(0.975, 2 degrees of freedom) = 4.302653; deviation 1
    Interval(mean=2.0, low=-0.484, high=4.484)
    """
    count = len(values)
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5) if count > 1 else float("inf")
    return Interval(round(mean, 6), round(mean - half, 3), round(mean + half, 3))


def differences(accuracy: dict[str, dict[str, list[float]]], choice: str = "final") -> dict[str, Interval]:
    """FedVG minus every other weighting in points, paired by seed, by the other's name."""
    points = {name: 100 * np.asarray(runs[choice]) for name, runs in accuracy.items()}
    return {name: interval(points["FedVG"] - of) for name, of in points.items() if name != "FedVG"}


def measure(seeds: int, rounds: int, varies_partition: bool = False) -> dict[str, dict[str, list]]:
    """weighting -> choice of round -> test accuracy of every seed; `curve`: every seed's at the evaluated `rounds`."""
    found: dict[str, dict[str, list]] = {}
    for name, weighting in WEIGHTINGS.items():
        found[name] = {choice: [] for choice in (*CHOICES, "curve")}
        for seed in track(range(seeds), name, console=Console(stderr=True)):
            config = fedvg_jax.Config(alpha=ALPHA, rounds=rounds, weighting=weighting, seed=seed)
            config = replace(config, partition_seed=seed) if varies_partition else config
            history = fedvg_jax.run(config)
            for choice, key in CHOICES.items():
                found[name][choice].append(round(history.summary[key], 6))
            evaluated = [r for r in history.records if "test_accuracy" in r]
            found[name]["rounds"] = [r["round"] for r in evaluated]
            found[name]["curve"].append([round(r["test_accuracy"], 4) for r in evaluated])
    return found


STYLES = {
    "FedVG": ("#0072b2", "-"),
    "FedAvg": ("#d55e00", "--"),
    "uniform": ("#009e73", "-."),
    "FedVG's weights, permuted": ("#7f7f7f", ":"),
    "inverse samples": ("#cc79a7", (0, (1, 1))),
}
"""Colour (readable without colour vision) and line of every weighting."""


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the learning curves as a picture: means over seeds, bands of one standard deviation, labels at the end."""
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
    low = max(low, high - 60)  # the first rounds would hide the differences of the last ones
    place = np.inf
    for name, value in sorted(ends.items(), key=lambda item: -item[1]):  # labels one below the other
        place = min(value, place - (high - low) / 18)
        label = f"{name} {value:.1f}"
        axes.annotate(label, (last, value), (last * 1.02, place), color=STYLES[name][0], va="center", fontsize=9)
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
    """What the README's first page also says."""
    rows = Table("weights", "test accuracy, %", "FedVG minus these, points [95 %]", title="final round")
    apart = differences(result["accuracy"])
    for name, runs in result["accuracy"].items():
        gap = apart.get(name)
        said = f"{gap.mean:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]" if gap else ""
        rows.add_row(name, f"{100 * np.mean(runs['final']):.2f}", said)
    return rows


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--vary-partition", action="store_true", help="draw the partition from every seed, too")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE.json")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the learning curves")
    args = parser.parse_args(argv)
    command = f"python -m benchmarks.demo --seeds {args.seeds} --rounds {args.rounds}"
    command += " --vary-partition" * args.vary_partition
    described = machine.describe(command.split())
    accuracy = measure(args.seeds, args.rounds, args.vary_partition)
    settings = {"dataset": "digits", "alpha": ALPHA, "rounds": args.rounds, "seeds": args.seeds}
    result = {
        "machine": machine.finished(described),
        "settings": settings | {"partitions": args.seeds if args.vary_partition else 1},
        "weightings": WEIGHTINGS,
        "accuracy": accuracy,
    }
    machine.write(args.out, result)
    if args.picture:
        draw(result, args.picture)
    Console().print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
