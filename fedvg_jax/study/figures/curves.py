"""Methods beside one another: learning curves, final results against alpha, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study import cells, statistics
from fedvg_jax.study.cells import Cell, Scenario, Study
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.tables import Options, options

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


def learning_curves(study: Study) -> list[Drawing]:
    """Returns a figure per group of settings, with a panel per value of the column's setting.

    Where no setting is that of columns, one figure has a panel per scenario. A study of one run shows its validation
    rows, too.
    """
    drawn = []
    groups = cells.panels(study) if cells.column_setting(study) else {(): list(study.scenarios)}
    for i, (rest, scenarios) in enumerate(groups.items()):
        figure, axes = base.grid(len(scenarios))
        rows = [row for panel, scenario in zip(axes, scenarios, strict=True) for row in _panel(study, panel, scenario)]
        base.label_rows(axes, metric_label(study))
        text = "Learning curves, means with bands of one standard deviation"
        title = ", ".join(filter(None, (text, cells.scenario_text(rest))))
        columns = ("setting", "method", "round", "mean", "std", "n")
        drawn += [Drawing(base.numbered("curves", i), title, figure, columns, rows)] if rows else []
    return drawn


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
    if curves:
        axes.set_ylim(*_limits(list(curves.values())))
    if len(study.runs) == 1:
        rounds, values = cells.evaluations(study, study.runs[0], "val")
        axes.plot(rounds, values, color=base.GREY, ls="--", label="validation")
    column, value = cells.column_setting(study), cells.value_text(cells.column_value(study, scenario))
    title = f"{column} {value}" if column else cells.scenario_text(scenario)
    axes.set(xlabel="round", title=base.plain(title, 40))
    base.clean(axes)
    base.whole_numbers(axes.xaxis)
    return rows


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Returns the range of the axis: all bands after the first fifth of the evaluations, with a margin.

    The first rounds would hide the differences of the last ones.
    """
    low = min(float((c.mean - c.std)[len(c.rounds) // 5 :].min()) for c in curves)
    high = max(float((c.mean + c.std)[len(c.rounds) // 5 :].max()) for c in curves)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin


def accuracy_against_alpha(study: Study) -> list[Drawing]:
    """Returns a figure with the final result of every method against alpha, on a logarithmic axis; [] for one alpha."""
    if cells.column_setting(study) != "alpha":
        return []
    groups = cells.panels(study)
    figure, axes = base.grid(len(groups))
    rows: list[tuple] = []
    for panel, (rest, scenarios) in zip(axes, groups.items(), strict=True):
        rows += [(cells.scenario_text(rest), *row) for row in _panel_against_alpha(study, panel, scenarios)]
        panel.set(xlabel=r"Dirichlet $\alpha$ (small is skewed)", title=base.plain(cells.scenario_text(rest), 40))
    base.label_rows(axes, metric_label(study))
    columns = ("setting", "method", "alpha", "mean", "std", "n")
    return [Drawing("alphas", "Final result against alpha, means with one standard deviation", figure, columns, rows)]


def _panel_against_alpha(study: Study, axes: Axes, scenarios: Sequence[Scenario]) -> list[tuple]:
    """Draws the lines of one panel; returns the rows of the CSV file."""
    axes.set_xscale("log")
    rows = []
    for method, look in base.line_styles(study.methods).items():
        results_of = [(s, cells.results(study, study.cell(method, s))) for s in scenarios]
        points = [
            (cells.column_value(study, scenario), *statistics.mean_and_std(list(finals.values())), len(finals))
            for scenario, finals in results_of
            if finals
        ]
        if points:
            x, mean, std = (np.array([point[i] for point in points]) for i in range(3))
            axes.errorbar(x, mean, np.nan_to_num(std), ms=4, capsize=2, elinewidth=0.7, **look)
            rows += [(method, *point) for point in points]
    values = [cells.column_value(study, scenario) for scenario in scenarios]
    axes.set_xticks(values, [cells.value_text(value) for value in values])
    axes.minorticks_off()
    base.clean(axes)
    return rows


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
    """Returns a figure of every method minus the baseline, a panel per scenario; [] where every pair is compared.

    Args:
        study: what is drawn.
        chosen: what is compared; None for final rounds against the default baseline.
    """
    chosen = chosen or options(study)
    compared = statistics.compare_pairs(study, chosen.pairs(study), chosen.choice)
    comparisons = {(m, scenario): each for (m, _, scenario), each in compared.items() if each.n}
    scenarios = [s for s in study.scenarios if any(scenario == s for _, scenario in comparisons)]
    if chosen.every_pair or not scenarios:
        return []
    labels = [base.plain(method_title(method)) for method, _ in chosen.pairs(study)]
    height = (sum(0.09 + 0.15 * (label.count("\n") + 1) for label in labels) + 0.75) / base.PANEL_HEIGHT
    width = base.WIDTH if len(scenarios) > 1 else NARROW
    figure, axes = base.grid(len(scenarios), height, width, sharey=True, sharex=True)
    baseline, rows = method_title(chosen.baseline), []
    for panel, scenario in zip(axes, scenarios, strict=True):
        bars = {
            method: Bar(method_title(method), each.mean, *each.t_interval, statistics.outcome(study, each))
            for method in study.methods
            if (each := comparisons.get((method, scenario)))
        }
        draw_bars(panel, list(bars.values()))
        panel.tick_params(labelbottom=True)
        panel.set(
            title=base.plain(cells.scenario_text(scenario), 40),
            xlabel=base.plain(f"{study.difference_unit} more than {baseline}", 45 if len(scenarios) == 1 else 30),
        )
        rows += [(cells.scenario_text(scenario), method, *bar[1:]) for method, bar in bars.items()]
    title = f"Methods minus {baseline}, {cells.choice_name(study, chosen.choice)}, means with 95 % intervals"
    return [Drawing("differences", title, figure, ("setting", "method", "mean", "low", "high", "outcome"), rows)]


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
