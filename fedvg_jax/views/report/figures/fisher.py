"""FedVG's score against the root of the Fisher trace: the paper states that L1 norms are proportional to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.views.report.figures import base
from fedvg_jax.views.report.figures.base import Drawing, Style
from fedvg_jax.views.report.figures.validity import of_present, rank_correlation
from fedvg_jax.views.report.study import Run, Study, scenario_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRACE = "client_fisher_trace"
"""Key of a record: trace of every client's empirical Fisher information on D_val."""


def scores_and_roots(run: Run) -> np.ndarray:
    """Returns (round, client, score, root of the Fisher trace) of every client in every round, [n, 4].

    Clients with a score or a trace of 0, and clients that are absent from a round, are left out.
    """
    rows = [
        (record["round"], client, score, trace**0.5)
        for record in run.records
        if record.get(TRACE)
        for client, score, trace in zip(
            record["clients"],
            of_present(record, record["scores"], run.config.untrained),
            record[TRACE],
            strict=True,
        )
        if score is not None and trace is not None and score > 0 and trace > 0
    ]
    return np.array(rows, float).reshape(-1, 4)


def slope(roots: np.ndarray, scores: np.ndarray) -> float:
    """Returns the slope of log score over log root by least squares; 1 where they are proportional.

    >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0, 12.0])), 6)
    1.0
    """
    x, y = np.log(roots), np.log(scores)
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def score_against_fisher(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of scores against roots of the Fisher trace, a panel per method of FedVG's weights and scenario.

    Each panel has one run. A line shows proportionality.
    """
    panels = []
    for method in study.methods:
        for scenario in study.scenarios:
            runs = study.cell(method, scenario).runs
            if runs and "fedvg" in runs[min(runs)].weighting:
                values = scores_and_roots(runs[min(runs)])
                if len(values) >= 3:
                    panels.append((method, scenario, values))
    if not panels:
        return "no run under FedVG's weights records the Fisher trace; --record client_fisher_trace does"
    figure, axes = base.grid(style, len(panels))
    rows = []
    for panel, (method, scenario, values) in zip(axes, panels, strict=True):
        _panel(panel, values)
        title = ", ".join(filter(None, (method, scenario_text(scenario))))
        correlation = rank_correlation(list(values[:, 3]), list(values[:, 2]))
        fit = slope(values[:, 3], values[:, 2])
        panel.set_title(f"{base.plain(title, 40)}\nrank correlation {correlation:.2f}, slope {fit:.2f}")
        rows += [(scenario_text(scenario), method, int(r), int(k), score, root) for r, k, score, root in values]
    figure.supxlabel("root of the Fisher trace", fontsize=style.font)
    figure.supylabel("score $G_k$", fontsize=style.font)
    columns = ("setting", "method", "round", "client", "score", "root_of_fisher_trace")
    return [
        Drawing(
            "fisher",
            "FedVG's score against Fisher information; dashed is proportional, later rounds are darker",
            figure,
            columns,
            rows,
        )
    ]


def _panel(axes: Axes, values: np.ndarray) -> None:
    """Draws the clients of all rounds, later rounds darker, and the line of proportionality through their mean."""
    rounds, _, scores, roots = values.T
    axes.scatter(roots, scores, c=-rounds, cmap="cividis", s=9, lw=0)
    ends = np.array([roots.min(), roots.max()])
    axes.plot(ends, ends * np.exp(np.mean(np.log(scores) - np.log(roots))), color=base.GREY, lw=0.9, ls="--")
    axes.set(xscale="log", yscale="log")
    base.log_ticks(axes.xaxis)
    base.log_ticks(axes.yaxis)
    base.clean(axes)
