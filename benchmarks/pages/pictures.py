"""Draws the pictures of committed results.

    python -m benchmarks.pages.pictures [forest] [uses] [methods] [size]

forest     FedVG minus its controls in every study
uses       every use of a validation set minus FedAvg
methods    methods minus FedAvg on CIFAR-10, for the README
size       accuracy of the uses of a validation set, and reliability of FedVG's weights, against its rows

Writes docs/pictures/NAME.png with 95 % intervals. Points of test accuracy are means over paired seeds in the final
round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from benchmarks import machine
from benchmarks.pages import studies as pages
from benchmarks.studies import uses
from fedvg_jax.study import statistics
from fedvg_jax.study.figures.curves import Bar, draw_bars

WIDTH, DPI = 8, 160
"""Inches and dots per inch. A page of the site shows 640 pixels, where 9 points are 10 pixels high."""
LAYOUT: dict[str, Any] = {"layout": "constrained"}

CONTROLS = {"FedAvg": "#0072b2", "uniform": "#d55e00", "placebo": "#009e73"}
SIZE_COLOURS = {"0.05": "#d55e00", "0.1": "#0072b2"}
SIZE_METHODS = {
    "fedvg": ("FedVG", "black"),
    "fitted": ("weights fitted on the rows", "#cc79a7"),
    "samples": ("FedAvg in the round best on the rows", CONTROLS["FedAvg"]),
    "permuted(fedvg)": ("placebo", CONTROLS["placebo"]),
    "uniform": ("uniform weights", CONTROLS["uniform"]),
}
SIZE_MARKS = {"marker": "o", "ms": 4, "capsize": 2, "lw": 1.3}
REACH = 12.0
"""Points on both sides of 0 that are drawn; longer intervals end in an arrow."""


def draw_forest(path: Path) -> None:
    """Writes FedVG minus its controls in every committed study, with the rows of benchmarks/results/README.md."""
    listed = pages.studies()[::-1]
    figure, panels = plt.subplots(1, len(CONTROLS), sharey=True, figsize=(WIDTH, 6.4), **LAYOUT)
    for panel, (name, colour) in zip(panels, CONTROLS.items(), strict=True):
        for height, study in enumerate(listed):
            if name in study.gaps:
                mean, low, high = study.gaps[name].interval
                ends = max(low, -REACH), min(high, REACH)
                _draw_interval(panel, height, mean, *ends, colour, 5, 1.5)
                for end, marker in zip(ends, "<>", strict=True):
                    if abs(end) == REACH:
                        panel.plot([end], [height], marker, color=colour, ms=4, clip_on=False)
        panel.set(xlim=(-REACH, REACH), title=f"FedVG minus\n{name}")
        _strip(panel)
    labels = [f"{study.what}, {_setting(study.alpha)}" for study in listed]
    panels[0].set_yticks(range(len(listed)), labels)
    figure.supxlabel("points of test accuracy in the final round; right of 0 FedVG is ahead")
    figure.savefig(path, dpi=DPI)


def _draw_interval(
    panel: Axes,
    height: float,
    mean: float,
    low: float,
    high: float,
    colour: str,
    size: float,
    width: float,
    **options: Any,
) -> None:
    """Draws a mean with its interval."""
    panel.plot([low, high], [height] * 2, color=colour, lw=width)
    panel.plot([mean], [height], "o", color=colour, ms=size, **options)


def _strip(panel: Axes) -> None:
    """Draws the line at 0, and removes what a panel of intervals does not need."""
    panel.axvline(0, color="0.6", lw=0.8, zorder=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def _setting(alpha: str) -> str:
    return f"alpha {alpha}" if alpha[0].isdigit() else alpha


def draw_uses(path: Path) -> None:
    """Writes the picture: every use of D_val minus FedAvg, one panel a data set, one colour an alpha."""
    sets = {title: uses.read(folder) for folder, title in uses.SETS.items()}
    colours = dict(zip(uses.ALPHAS, ("#d55e00", "#0072b2", "#009e73"), strict=True))
    figure, panels = plt.subplots(2, 2, sharey=True, figsize=(WIDTH, 8.4), **LAYOUT)
    for panel, (title, values) in zip(panels.flat, sets.items(), strict=True):
        for height, method in enumerate(reversed(uses.USES)):
            for shift, (alpha, colour) in zip((0.22, 0, -0.22), colours.items(), strict=True):
                if gap := uses.against(values, alpha, method):
                    place, label = height + shift, f"alpha {alpha}"
                    _draw_interval(panel, place, *gap.interval, colour, 4, 1.4, label=label)
        panel.set_title(title)
        _strip(panel)
    panels[0, 0].set_yticks(range(len(uses.USES)), [*uses.USES.values()][::-1])
    handles, labels = panels[0, 0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    options = {"ncols": len(unique), "frameon": False}
    figure.legend(unique.values(), unique.keys(), loc="outside upper right", **options)
    figure.supxlabel("points of test accuracy more than FedAvg in the final round")
    figure.savefig(path, dpi=DPI)


METHODS = {
    "scaffold": "Scaffold",
    "fedvg": "FedVG",
    "feddyn": "FedDyn",
    "uniform": "equal weights",
    "elastic": "Elastic",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
}
"""Method -> its name in the README's picture, from top to bottom."""


def draw_methods(path: Path) -> None:
    """Writes the README's picture: methods minus FedAvg on CIFAR-10 at alpha 0.05, Holm's correction over them."""
    # equal weights are in the second folder only
    folders = [uses.read("methods_cifar10"), uses.read("features_cifar10")]
    gaps = {}
    for method in METHODS:
        of_folders = [uses.against(folder, "0.05", method) for folder in folders]
        gaps[method] = next(filter(None, of_folders))
    p_values = statistics.holm([gap.p for gap in gaps.values()])
    bars = []
    for (method, gap), p in zip(gaps.items(), p_values, strict=True):
        outcome = "ahead" if gap.mean > 0 else "behind"
        outcome = outcome if p < uses.LEVEL else "undecided"
        bars.append(Bar(METHODS[method], gap.mean, gap.low, gap.high, outcome))
    figure, axes = plt.subplots(figsize=(6.5, 2.9), layout="constrained")
    draw_bars(axes, bars)
    axes.set_xlabel("points of test accuracy more than FedAvg")
    axes.set_title("CIFAR-10, 100 clients with few classes each", loc="left")
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def draw_size(path: Path) -> None:
    """Writes the accuracy of every use of D_val, and the reliability of FedVG's weights, against the rows of D_val."""
    folder = machine.RESULTS / "validation_size"
    runs = pd.read_csv(folder / "runs.csv", dtype={"alpha": str})
    runs = runs[runs.part.isin(("all", "size", "placebo", "chosen", "fitted"))]
    runs["rows"] = runs["set"].replace("all", "1150").astype(int)  # all: by the partition
    figure, panels = plt.subplots(2, 2, figsize=(WIDTH, 6.6), **LAYOUT)
    (*of_alphas, last, of_legend) = panels.flat
    of_alphas[1].sharey(of_alphas[0])
    for axes, alpha in zip(of_alphas, SIZE_COLOURS, strict=True):
        for method, (name, colour) in SIZE_METHODS.items():
            of_method = runs[(runs.alpha == alpha) & (runs.weighting == method)]
            accuracy = of_method.at_best_val if method == "samples" else of_method.final
            if method == "uniform":  # which reads no row
                mean = accuracy.mean()
                axes.axhline(mean, color=colour, lw=1.3, ls="--", label=name, zorder=0)
            else:
                _draw_means(axes, accuracy.groupby(of_method.rows), color=colour, label=name)
        axes.set(title=f"alpha {alpha}", ylabel="test accuracy, %")
    pairs = pd.read_csv(folder / "reliability.csv", dtype={"alpha": str})
    columns = {"signal": ("share of signal", "-"), "rank_correlation": ("rank correlation", ":")}
    for alpha, of_alpha in pairs.groupby("alpha", sort=False):
        for column, (name, line) in columns.items():
            style = {"color": SIZE_COLOURS[alpha], "ls": line, "label": f"{name}, alpha {alpha}"}
            _draw_means(last, of_alpha.groupby("rows")[column], **style)
    last.axhline(0.5, color="0.6", lw=0.8, zorder=0)
    last.set(title="Weights by two disjoint sets", ylim=(0, 1))
    for axes in (*of_alphas, last):
        axes.set(xscale="log", xlabel="rows of the validation set")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
    of_legend.axis("off")
    uses_of_rows, of_weights = (
        of_legend.legend(*axes.get_legend_handles_labels(), loc=place, frameon=False)
        for axes, place in ((of_alphas[0], "upper left"), (last, "lower left"))
    )
    of_weights.axes.add_artist(uses_of_rows)  # an axes has one legend
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _draw_means(axes: Axes, by_rows: Any, **style: Any) -> None:
    """Draws the means of values that are grouped by rows, with 95 % t intervals."""
    half = stats.t.ppf(0.975, by_rows.count() - 1) * by_rows.sem()
    axes.errorbar([*by_rows.groups], by_rows.mean(), half, **SIZE_MARKS, **style)


PICTURES = {"forest": draw_forest, "uses": draw_uses, "methods": draw_methods, "size": draw_size}


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the pictures that the command line names, by default all."""
    parser = machine.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(PICTURES))
    names = parser.parse_args(argv).names
    with plt.rc_context({"font.size": 9, "axes.titlesize": 10, "figure.labelsize": 9}):
        for name in names:
            PICTURES[name](machine.ROOT / "docs" / "pictures" / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
