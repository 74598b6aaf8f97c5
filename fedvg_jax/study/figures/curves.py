"""Methods beside one another: learning curves, final results against alpha, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Frame, Study, column_setting, column_value, panels
from fedvg_jax.study.outcomes import Outcome
from fedvg_jax.study.places import Condition, condition_text, value_text
from fedvg_jax.study.tables import Options, options

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(study: Study, condition: Condition) -> Frame:
    """Returns mean, deviation and number of runs of every method in the rounds that all its runs evaluate.

    Runs without a finite evaluation are left out. The deviation of one run is 0.
    """
    import pandas

    rows = []
    for method in study.methods:
        for seeds, run in study.group(method, condition).runs.items():
            values = study.outcome.evaluations(run.records)
            rows += [(method, seeds, number, value) for number, value in values.items()]
    values: Frame = pandas.DataFrame(rows, columns=["method", "seeds", "round", "value"])
    counts = values.groupby("method")["seeds"].nunique()
    points = values.groupby(["method", "round"], sort=False)["value"].agg(
        mean="mean", std="std", n="size"
    )
    points = points.fillna({"std": 0.0}).reset_index()
    return points[points["n"] == points["method"].map(counts)]


def learning_curves(study: Study) -> list[Drawing]:
    """Returns a figure per group of settings, with a panel per value of the column's setting.

    Where no setting is that of columns, one figure has a panel per condition. A study of one run shows its validation
    rows, too.
    """
    import pandas

    drawn = []
    column = column_setting(study)
    groups = panels(study) if column else {(): list(study.conditions)}
    for i, (rest, conditions) in enumerate(groups.items()):
        figure, axes = base.grid(len(conditions))
        points = {condition_text(condition): curves(study, condition) for condition in conditions}
        for panel, condition in zip(axes, conditions, strict=True):
            draw_curves(panel, study, points[condition_text(condition)])
            value = f"{column} {value_text(column_value(study, condition))}"
            base.set_title(panel, value if column else condition_text(condition))
        if len(study.runs) == 1:
            of_validation = study.outcome.evaluations(study.runs[0].records, "val")
            axes[0].plot(
                [*of_validation],
                [*of_validation.values()],
                color=base.GREY,
                ls="--",
                label="validation",
            )
        base.label_rows(axes, metric_label(study.outcome))
        title = base.titled("Learning curves, means with bands of one standard deviation", rest)
        numbers = pandas.concat(points, names=["setting"]).reset_index("setting")
        if len(numbers):
            drawn.append(Drawing(base.numbered("curves", i), title, figure, numbers))
    return drawn


def metric_label(outcome: Outcome) -> str:
    """Returns the label of the axis of the metric."""
    unit = " (%)" if outcome.is_share else ""
    return f"{outcome.title}{unit}{outcome.direction}"


def draw_curves(axes: Axes, study: Study, points: Frame) -> None:
    """Draws the curves of a condition with their bands; they start on the axis of their values."""
    styles = base.line_styles(study.methods)
    for method, line in points.groupby("method", sort=False):
        low, high = line["mean"] - line["std"], line["mean"] + line["std"]
        axes.plot(
            line["round"],
            line["mean"],
            ms=3,
            markevery=max(1, len(line) // 6),
            clip_on=False,
            **styles[method],
        )
        axes.fill_between(line["round"], low, high, color=styles[method]["color"], alpha=0.12, lw=0)
    if points["round"].nunique() > 1:
        axes.set_xlim(points["round"].min(), points["round"].max())
    axes.set_xlabel("round")
    base.clean(axes)
    base.whole_numbers(axes.xaxis)


def accuracy_against_alpha(study: Study) -> list[Drawing]:
    """Returns a figure with the final result of every method against alpha, on a logarithmic axis; [] for one alpha."""
    if column_setting(study) != "alpha":
        return []
    groups = panels(study)
    texts = {
        condition: condition_text(rest)
        for rest, conditions in groups.items()
        for condition in conditions
    }
    by_group = study.frame.groupby(["condition", "method"], sort=False)["final"]
    points = by_group.agg(mean="mean", std="std", n="count").reset_index()
    points = points[points["n"] > 0]
    conditions = [study.conditions[position] for position in points["condition"]]
    points.insert(0, "setting", [texts[condition] for condition in conditions])
    points.insert(3, "alpha", [column_value(study, condition) for condition in conditions])
    figure, axes = base.grid(len(groups))
    for panel, rest in zip(axes, groups, strict=True):
        _draw_against_alpha(panel, study, points[points["setting"] == condition_text(rest)])
        base.set_title(panel, condition_text(rest))
    base.label_rows(axes, metric_label(study.outcome))
    title = "Final result against alpha, means with one standard deviation"
    return [Drawing("alphas", title, figure, points.drop(columns="condition"))]


def _draw_against_alpha(axes: Axes, study: Study, points: Frame) -> None:
    """Draws the lines of one panel."""
    axes.set_xscale("log")
    for method, look in base.line_styles(study.methods).items():
        line = points[points["method"] == method]
        axes.errorbar(
            line["alpha"],
            line["mean"],
            line["std"].fillna(0),
            ms=4,
            capsize=2,
            elinewidth=0.7,
            **look,
        )
    values = sorted(set(points["alpha"]))
    axes.set_xticks(values, list(map(value_text, values)))
    axes.set_xlabel(r"Dirichlet $\alpha$ (small is skewed)")
    axes.minorticks_off()
    base.clean(axes)


# --- differences

OUTCOMES = {"ahead": "#0072b2", "behind": "#d55e00", "undecided": "0.55"}
"""Outcome of a comparison -> its colour."""

NARROW = 5.0
"""Inches of a single panel, which a narrow screen shows whole."""


class Bar(NamedTuple):
    """A mean difference with the limits of its interval, which may not be finite."""

    label: str
    mean: float
    low: float
    high: float
    outcome: str


def differences(study: Study, chosen: Options | None = None) -> list[Drawing]:
    """Returns a figure of every method minus the baseline, a panel per condition; [] where every pair is compared.

    Args:
        study: what is drawn.
        chosen: what is compared; None for final rounds against the default baseline.
    """
    chosen = chosen or options(study)
    if chosen.every_pair or len(study.methods) == 1:
        return []
    compared = chosen.compared(study)
    shown = compared[compared["n"] > 0]
    if shown.empty:
        return []
    labels = [base.plain(method_title(method)) for method in shown["method"].unique()]
    height = 0.75 + sum(0.24 + 0.15 * label.count("\n") for label in labels)
    by_condition = shown.groupby("condition")
    is_alone = len(by_condition) == 1
    width = NARROW if is_alone else base.WIDTH
    figure, axes = base.grid(
        len(by_condition), height / base.PANEL_HEIGHT, width, sharey=True, sharex=True
    )
    columns = ["method", "difference", "t_low", "t_high", "outcome"]
    baseline = method_title(chosen.baseline)
    label = base.plain(
        f"{study.outcome.difference_unit} more than {baseline}", 45 if is_alone else 30
    )
    for panel, (position, rows) in zip(axes, by_condition, strict=True):
        values = rows[columns].itertuples(index=False)
        draw_bars(panel, [Bar(method_title(method), *others) for method, *others in values])
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(label)
        base.set_title(panel, condition_text(study.conditions[position]))
    numbers = shown[columns].set_axis(["method", "mean", "low", "high", "outcome"], axis=1)
    numbers.insert(
        0,
        "setting",
        [condition_text(study.conditions[position]) for position in shown["condition"]],
    )
    title = f"Methods minus {baseline}, {study.outcome.choice_name(chosen.choice)}, means with 95 % intervals"
    return [Drawing("differences", title, figure, numbers)]


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
