"""The final result against a numeric setting, such as Dirichlet's alpha."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedvg_jax.study.cells import Scenario, Study, majority, results, scenario_text, value_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.figures.curves import metric_label
from fedvg_jax.study.statistics import mean_and_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def accuracy_against_alpha(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with the final result of every method against alpha, on a logarithmic axis."""
    return against(study, style, "alpha", "alphas", r"Dirichlet $\alpha$ (small is skewed)", "log")


def against(study: Study, style: Style, setting: str, name: str, label: str, scale: str) -> list[Drawing] | str:
    """Returns a figure with the final result of every method against a numeric setting.

    Args:
        study: what is drawn.
        style: sizes.
        setting: dotted name.
        name: of the drawing.
        label: of the axis.
        scale: of the axis, "log" or "linear".
    """
    varied = [scenario for scenario in study.scenarios if dict(scenario).get(setting) is not None]
    if len({dict(scenario)[setting] for scenario in varied}) < 2:
        return f"the runs have one value of {setting}; a sweep varies it with --{setting}"
    groups: dict[Scenario, list[Scenario]] = {}
    for scenario in varied:
        groups.setdefault(tuple(pair for pair in scenario if pair[0] != setting), []).append(scenario)
    figure, axes = base.grid(style, len(groups))
    rows: list[tuple] = []
    for panel, (rest, scenarios) in zip(axes, groups.items(), strict=True):
        panel.set_xscale(scale)
        where = scenario_text(rest)
        rows += [(where, *row) for row in _panel(study, panel, scenarios, setting, style)]
        panel.set(xlabel=label, title=base.plain(where))
    figure.supylabel(metric_label(study), fontsize=style.font)
    columns = ("setting", "method", setting, "mean", "std", "n")
    return [Drawing(name, f"Final result against {setting}", figure, columns, rows)]


def _panel(study: Study, axes: Axes, scenarios: list[Scenario], setting: str, style: Style) -> list[tuple]:
    """Draws the lines of one panel; returns the rows of the CSV file."""
    styles = base.line_styles(study.methods)
    values = [dict(scenario)[setting] for scenario in scenarios]
    rows, ends = [], []
    for method in study.methods:
        points = [
            (value, *mean_and_std(list(finals.values())), len(finals))
            for value, scenario in zip(values, scenarios, strict=True)
            if (finals := results(study, study.cell(method, scenario)))
        ]
        if not points:
            continue
        line = styles[method]
        x, mean, std = (np.array([point[i] for point in points]) for i in range(3))
        options: dict[str, Any] = {"color": line.colour, "ls": line.dashes, "marker": line.marker}
        axes.errorbar(x, mean, np.nan_to_num(std), ms=4, capsize=2, elinewidth=0.7, **options)
        ends.append((x[-1], mean[-1], method, line.colour))
        rows += [(method, *point) for point in points]
    shares = [s for m in study.methods for c in scenarios if (s := majority(study.cell(m, c))) is not None]
    low, high = axes.get_ylim()
    if shares and low < np.mean(shares) < high:
        axes.axhline(float(np.mean(shares)), color=base.GREY, lw=0.9, ls=":")
        ends.append((max(values), float(np.mean(shares)), "largest class", base.GREY))
    is_accuracy = study.metric == "accuracy"  # a mean minus its deviation may be below 0
    axes.set_ylim(*((max(0.0, low), min(100.5, high)) if is_accuracy else (low, high)))
    labels = [value_text(value) for value in values]
    axes.set_xticks(values, labels, rotation=0 if style.panels_per_row > 1 else 45)
    axes.minorticks_off()
    base.clean(axes)
    base.label_ends(axes, ends, style)
    return rows
