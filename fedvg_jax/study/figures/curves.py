"""Learning curves: the mean over runs with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.runs.record import history
from fedvg_jax.study.cells import (
    Cell,
    Scenario,
    Study,
    column_setting,
    column_value,
    evaluations,
    majority,
    panels,
    scenario_text,
    value_text,
)
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LARGEST_CLASS = "largest class"
"""Label of the line of always answering the largest class."""


class Curve(NamedTuple):
    """Mean and deviation over the runs of a cell at the rounds that all of them evaluate, at least one."""

    rounds: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    """0 for one run."""
    n: int


def curve(study: Study, cell: Cell) -> Curve | None:
    """Returns the learning curve of a cell; None without a round that all runs evaluate.

    Runs without a finite evaluation are left out.
    """
    evaluated = [dict(zip(*evaluations(study, run), strict=True)) for run in cell.runs.values()]
    runs = [values for values in evaluated if values]
    rounds = sorted(set.intersection(*map(set, runs))) if runs else []
    if not rounds:
        return None
    values = np.array([[run[r] for r in rounds] for run in runs])
    std = values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    return Curve(np.array(rounds), values.mean(0), std, len(runs))


def accuracy_against_bytes(study: Study, style: Style) -> list[Drawing] | str:
    """Returns the learning curves against the megabytes that clients received and sent so far, the mean over runs."""
    runs = [run for cell in study.cells.values() for run in cell.runs.values()]
    if not all(history.bytes_sent(run.records) for run in runs):
        return "some runs recorded no bytes; run them again with this version"

    def by_megabytes(study: Study, cell: Cell) -> Curve | None:
        sent = [np.cumsum([sum(r[name] for name in history.SENT) for r in run.records]) for run in cell.runs.values()]
        made, means = curve(study, cell), np.array([np.mean(sums) for sums in zip(*sent, strict=False)])
        return None if made is None else made._replace(rounds=means[made.rounds - 1] / 1e6)

    return learning_curves(study, style, by_megabytes, "bytes", "MB sent")


def learning_curves(
    study: Study,
    style: Style,
    curve_of: Callable[[Study, Cell], Curve | None] = curve,
    stem: str = "curves",
    label: str = "round",
) -> list[Drawing] | str:
    """Returns a figure per group of settings, with a panel per value of the column's setting.

    Where no setting is that of columns, one figure has a panel per scenario.

    Args:
        study: what is drawn.
        style: sizes.
        curve_of: the curve of a cell.
        stem: name of the first drawing.
        label: of the horizontal axis.
    """
    drawn = []
    groups = panels(study) if column_setting(study) else {(): list(study.scenarios)}
    for i, (rest, scenarios) in enumerate(groups.items()):
        figure, axes = base.grid(style, len(scenarios))
        rows = []
        for panel, scenario in zip(axes, scenarios, strict=True):
            rows += _panel(study, panel, scenario, style, curve_of, label)
        figure.supylabel(metric_label(study), fontsize=style.font)
        against = "" if label == "round" else f" against {label}"
        title = f"Learning curves{against}{', ' + scenario_text(rest) if rest else ''}"
        name = stem if i == 0 else f"{stem}-{i + 1}"
        if rows:
            drawn.append(Drawing(name, title, figure, ("setting", "method", label, "mean", "std", "n"), rows))
    return drawn or "the runs of no cell have an evaluated round in common"


def metric_label(study: Study) -> str:
    """Returns the label of the axis of the metric."""
    return "test accuracy (%)" if study.metric == "accuracy" else "test loss"


def _panel(study: Study, axes: Axes, scenario: Scenario, style: Style, curve_of, label: str) -> list[tuple]:
    """Draws the curves of one scenario; returns the rows of the CSV file."""
    styles = base.line_styles(study.methods)
    curves = {m: c for m in study.methods if (c := curve_of(study, study.cell(m, scenario))) is not None}
    rows, ends = [], []
    for method, drawn in curves.items():
        line = styles[method]
        axes.plot(
            drawn.rounds, drawn.mean, color=line.colour, ls=line.dashes, marker=line.marker, ms=3,
            markevery=max(1, len(drawn.rounds) // 6),
        )  # fmt: skip
        axes.fill_between(
            drawn.rounds, drawn.mean - drawn.std, drawn.mean + drawn.std, color=line.colour, alpha=0.12, lw=0
        )
        ends.append((drawn.rounds[-1], drawn.mean[-1], method, line.colour))
        values = zip(drawn.rounds, drawn.mean, drawn.std, strict=True)
        rows += [(scenario_text(scenario), method, r.item(), m, s, drawn.n) for r, m, s in values]
    axes.set_ylim(*limits(study, list(curves.values())))
    ends += largest_class(study, axes, scenario)
    base.clean(axes)
    axes.set(xlabel=label, title=_title(study, scenario))
    if label == "round":
        base.whole_numbers(axes.xaxis)
    base.label_ends(axes, ends, style)
    return rows


def largest_class(study: Study, axes: Axes, scenario: Scenario) -> list[tuple[float, float, str, str]]:
    """Draws the accuracy of always answering the largest class where it is within the axes; returns its label.

    Args:
        study: what is reported.
        axes: the vertical limits must be final.
        scenario: of the panel.

    Returns:
        The end of the line as `base.label_ends` takes it, or none.
    """
    shares = [s for m in study.methods if (s := majority(study.cell(m, scenario))) is not None]
    low, high = axes.get_ylim()
    if not shares or not low < shares[0] < high:
        return []
    axes.axhline(shares[0], color=base.GREY, lw=0.9, ls=":")
    return [(axes.get_xlim()[1], shares[0], LARGEST_CLASS, base.GREY)]


def _title(study: Study, scenario: Scenario) -> str:
    column = column_setting(study)
    return base.plain(f"{column} {value_text(column_value(study, scenario))}" if column else scenario_text(scenario))


def limits(study: Study, curves: list[Curve]) -> tuple[float, float]:
    """Returns the range of the axis: all bands after the first fifth of the evaluations, with a margin.

    The first rounds would hide the differences of the last ones.
    """
    if not curves:
        return 0.0, 1.0
    later = [slice(len(c.rounds) // 5, None) for c in curves]
    low = min(float((c.mean - c.std)[part].min()) for c, part in zip(curves, later, strict=True))
    high = max(float((c.mean + c.std)[part].max()) for c, part in zip(curves, later, strict=True))
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    is_accuracy = study.metric == "accuracy"
    most, least = (100.5 if is_accuracy else np.inf), (0.0 if is_accuracy or low >= 0 else -np.inf)
    return max(least, low - margin), min(most, high + margin)
