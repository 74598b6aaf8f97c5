"""Learning curves, with bands of one standard deviation, and the final result against a numeric setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.study import cells
from fedvg_jax.study.cells import Cell, Scenario, Study
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.statistics import mean_and_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    evaluated = [dict(zip(*cells.evaluations(study, run), strict=True)) for run in cell.runs.values()]
    runs = [values for values in evaluated if values]
    rounds = sorted(set.intersection(*map(set, runs))) if runs else []
    if not rounds:
        return None
    values = np.array([[run[r] for r in rounds] for run in runs])
    std = values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    return Curve(np.array(rounds), values.mean(0), std, len(runs))


def learning_curves(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure per group of settings, with a panel per value of the column's setting.

    Where no setting is that of columns, one figure has a panel per scenario. A study of one run shows its validation
    rows, too.
    """
    drawn = []
    groups = cells.panels(study) if cells.column_setting(study) else {(): list(study.scenarios)}
    for i, (rest, scenarios) in enumerate(groups.items()):
        figure, axes = base.grid(style, len(scenarios))
        rows = []
        for panel, scenario in zip(axes, scenarios, strict=True):
            rows += _panel(study, panel, scenario)
        base.label_rows(axes, metric_label(study))
        title = ", ".join(filter(None, ("Learning curves", cells.scenario_text(rest))))
        name = "curves" if i == 0 else f"curves-{i + 1}"
        if rows:
            drawn.append(Drawing(name, title, figure, ("setting", "method", "round", "mean", "std", "n"), rows))
    return drawn or "the runs of no cell have an evaluated round in common"


def metric_label(study: Study) -> str:
    """Returns the label of the axis of the metric."""
    return f"{study.metric_title} (%)" if study.unit > 1 else study.metric_title


def _panel(study: Study, axes: Axes, scenario: Scenario) -> list[tuple]:
    """Draws the curves of one scenario; returns the rows of the CSV file."""
    styles = base.line_styles(study.methods)
    curves = {m: c for m in study.methods if (c := curve(study, study.cell(m, scenario))) is not None}
    rows = []
    for method, drawn in curves.items():
        axes.plot(drawn.rounds, drawn.mean, ms=3, markevery=max(1, len(drawn.rounds) // 6), **styles[method])
        low, high, colour = drawn.mean - drawn.std, drawn.mean + drawn.std, styles[method]["color"]
        axes.fill_between(drawn.rounds, low, high, color=colour, alpha=0.12, lw=0)
        values = zip(drawn.rounds, drawn.mean, drawn.std, strict=True)
        rows += [(cells.scenario_text(scenario), method, r.item(), m, s, drawn.n) for r, m, s in values]
    axes.set_ylim(*limits(study, list(curves.values())))
    draw_largest_class(study, axes, [scenario])
    if len(study.runs) == 1:
        rounds, values = cells.evaluations(study, study.runs[0], "val")
        axes.plot(rounds, values, color=base.GREY, ls="--", label="validation")
    base.clean(axes)
    axes.set(xlabel="round", title=_title(study, scenario))
    base.whole_numbers(axes.xaxis)
    return rows


def draw_largest_class(study: Study, axes: Axes, scenarios: Sequence[Scenario]) -> None:
    """Draws the mean accuracy of always answering the largest class where it is within the axes' final limits."""
    shares = [s for m in study.methods for c in scenarios if (s := cells.majority(study, m, c)) is not None]
    low, high = axes.get_ylim()
    if shares and low < np.mean(shares) < high:
        axes.axhline(float(np.mean(shares)), color=base.GREY, lw=0.9, ls=":", label="largest class")


def _title(study: Study, scenario: Scenario) -> str:
    column, value = cells.column_setting(study), cells.value_text(cells.column_value(study, scenario))
    return base.plain(f"{column} {value}" if column else cells.scenario_text(scenario), 40)


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
    is_accuracy = study.unit > 1
    most, least = (100.5 if is_accuracy else np.inf), (0.0 if is_accuracy or low >= 0 else -np.inf)
    return max(least, low - margin), min(most, high + margin)


def accuracy_against_alpha(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with the final result of every method against alpha, on a logarithmic axis."""
    varied = [scenario for scenario in study.scenarios if dict(scenario).get("alpha") is not None]
    if len({dict(scenario)["alpha"] for scenario in varied}) < 2:
        return "the runs have one value of alpha; a sweep varies it with --alpha"
    groups: dict[Scenario, list[Scenario]] = {}
    for scenario in varied:
        groups.setdefault(tuple(pair for pair in scenario if pair[0] != "alpha"), []).append(scenario)
    figure, axes = base.grid(style, len(groups))
    rows: list[tuple] = []
    for panel, (rest, scenarios) in zip(axes, groups.items(), strict=True):
        where = cells.scenario_text(rest)
        rows += [(where, *row) for row in _panel_against_alpha(study, panel, scenarios, style)]
        panel.set(xlabel=r"Dirichlet $\alpha$ (small is skewed)", title=base.plain(where, 40))
    base.label_rows(axes, metric_label(study))
    columns = ("setting", "method", "alpha", "mean", "std", "n")
    return [Drawing("alphas", "Final result against alpha", figure, columns, rows)]


def _panel_against_alpha(study: Study, axes: Axes, scenarios: list[Scenario], style: Style) -> list[tuple]:
    """Draws the lines of one panel; returns the rows of the CSV file."""
    axes.set_xscale("log")
    styles = base.line_styles(study.methods)
    values = [dict(scenario)["alpha"] for scenario in scenarios]
    rows = []
    for method in study.methods:
        points = [
            (value, *mean_and_std(list(finals.values())), len(finals))
            for value, scenario in zip(values, scenarios, strict=True)
            if (finals := cells.results(study, study.cell(method, scenario)))
        ]
        if not points:
            continue
        x, mean, std = (np.array([point[i] for point in points]) for i in range(3))
        axes.errorbar(x, mean, np.nan_to_num(std), ms=4, capsize=2, elinewidth=0.7, **styles[method])
        rows += [(method, *point) for point in points]
    draw_largest_class(study, axes, scenarios)
    low, high = axes.get_ylim()
    is_accuracy = study.unit > 1  # a mean minus its deviation may be below 0
    axes.set_ylim(*((max(0.0, low), min(100.5, high)) if is_accuracy else (low, high)))
    labels = [cells.value_text(value) for value in values]
    axes.set_xticks(values, labels, rotation=0 if style.panels_per_row > 1 else 45)
    axes.minorticks_off()
    base.clean(axes)
    return rows
