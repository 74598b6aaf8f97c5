"""Methods beside one another: learning curves, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study import statistics
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.outcomes import has_clock
from fedvg_jax.study.places import Condition, condition_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME = "virtual_seconds"


def curves(study: Study, condition: Condition) -> Frame:
    """Returns mean, deviation and mean virtual time of every method in the rounds that all its runs evaluate.

    Runs without a finite evaluation are left out. The deviation of one run is 0.
    """
    import pandas

    rows = []
    for method in study.methods:
        for seeds, run in study.group(method, condition).runs.items():
            times = {record["round"]: record.get(TIME, np.nan) for record in run.records}
            for number, value in study.outcome.of_rounds.evaluations(run.records).items():
                rows.append((method, seeds, number, value, times[number]))
    values: Frame = pandas.DataFrame(rows, columns=["method", "seeds", "round", "value", TIME])
    counts = values.groupby("method")["seeds"].nunique()
    by_round = values.groupby(["method", "round"], sort=False)
    points = by_round["value"].agg(mean="mean", std="std", n="size")
    points[TIME] = by_round[TIME].mean()
    points = points.fillna({"std": 0.0}).reset_index()
    return points[points["n"] == points["method"].map(counts)]


def learning_curves(study: Study) -> list[Drawing]:
    """Returns a figure with a panel for each condition, against rounds, and one against virtual time with a clock.

    A study of one run shows its validation rows, too.
    """
    points = [curves(study, condition) for condition in study.conditions]
    if not any(map(len, points)):
        return []
    along = {"round": ("curves", "")}
    if all(map(has_clock, study.runs)):
        along[TIME] = ("curves_time", ", against virtual time")
    drawn = []
    for axis, (name, remark) in along.items():
        figure, axes = base.grid(len(points))
        for panel, condition, of_condition in zip(axes, study.conditions, points, strict=True):
            draw_curves(panel, study, of_condition, axis)
            panel.set_title(base.plain(condition_text(condition), 40))
        if len(study.runs) == 1 and axis == "round":
            rows = study.outcome.evaluations(study.runs[0].records, "val")
            axes[0].plot([*rows], [*rows.values()], color=base.GREY, ls="--", label="validation")
        figure.supylabel(study.outcome.of_rounds.title, fontsize=base.FONT)
        title = f"Learning curves, means with bands of one standard deviation{remark}"
        drawn.append(Drawing(name, title, figure))
    return drawn


def draw_curves(axes: Axes, study: Study, points: Frame, axis: str) -> None:
    """Draws the curves of a condition with their bands; they start on the axis of their values."""
    styles = base.line_styles(study.methods)
    for method, line in points.groupby("method", sort=False):
        low, high = line["mean"] - line["std"], line["mean"] + line["std"]
        every = max(1, len(line) // 6)
        axes.plot(line[axis], line["mean"], ms=3, markevery=every, clip_on=False, **styles[method])
        axes.fill_between(line[axis], low, high, color=styles[method]["color"], alpha=0.12, lw=0)
    if points[axis].nunique() > 1:
        axes.set_xlim(points[axis].min(), points[axis].max())
    axes.set_xlabel(axis.replace("_", " "))
    base.clean(axes)
    if axis == "round":
        base.whole_numbers(axes.xaxis)


# --- differences

OUTCOMES = {"ahead": "#0072b2", "behind": "#d55e00", "undecided": "0.55"}
"""Outcome of a comparison -> its colour."""


class Bar(NamedTuple):
    """A mean difference with the limits of its interval, which may not be finite."""

    label: str
    mean: float
    low: float
    high: float
    outcome: str


def differences(study: Study) -> list[Drawing]:
    """Returns a figure of every method minus the baseline, a panel per condition; [] where every pair is compared."""
    compared = statistics.compare_pairs(study)
    shown = compared[compared["n"] > 0]
    if study.baseline is None or shown.empty:
        return []
    labels = [base.plain(method_title(method)) for method in shown["method"].unique()]
    height = 1.15 + sum(0.24 + 0.15 * label.count("\n") for label in labels)
    by_condition = shown.groupby("condition")
    figure, axes = base.grid(len(by_condition), height, sharey=True, sharex=True)
    baseline = method_title(study.baseline)
    label = f"{study.outcome.title}, more than {baseline}"
    for panel, (position, rows) in zip(axes, by_condition, strict=True):
        bars = [
            Bar(method_title(row.method), row.difference, row.t_low, row.t_high, row.outcome)
            for row in rows.itertuples()
        ]
        draw_bars(panel, bars)
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(base.plain(label, 30))
        panel.set_title(base.plain(condition_text(study.conditions[position]), 40))
    what = f"Methods minus {baseline}, {statistics.stands_for(study)}"
    return [Drawing("differences", f"{what}, means with 95 % intervals", figure)]


def draw_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    """Draws intervals below one another, the first one on top, in the colours of their outcomes."""
    for height, bar in enumerate(bars):
        colour = OUTCOMES[bar.outcome]
        if np.isfinite([bar.low, bar.high]).all():
            axes.plot([bar.low, bar.high], [height] * 2, color=colour, lw=2)
        axes.plot([bar.mean], [height], "o", color=colour, ms=5, label=bar.outcome)
    axes.axvline(0, color="black", lw=0.8, zorder=0)
    axes.set_yticks(range(len(bars)), [base.plain(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    base.clean(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
