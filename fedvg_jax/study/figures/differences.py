"""Every method minus the baseline: means of paired differences with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.study import effects
from fedvg_jax.study.cells import Study, choice_name, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.tables import Options, options

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUTCOMES = {"ahead": "#0072b2", "behind": "#d55e00", "undecided": "0.55"}
"""Outcome of a comparison -> its colour."""

WIDTH = 5.0
"""Most inches of a single panel, which a narrow screen shows whole."""


class Bar(NamedTuple):
    """A mean difference with the limits of its interval, which may not be finite."""

    label: str
    mean: float
    low: float
    high: float
    outcome: str


def differences(study: Study, style: Style, chosen: Options | None = None) -> list[Drawing] | str:
    """Returns a figure of every method minus the baseline, a panel per scenario.

    Args:
        study: what is drawn.
        style: sizes.
        chosen: what is compared; None for final rounds against the default baseline.
    """
    chosen = chosen or options(study)
    if chosen.every_pair:
        return "every pair is compared, in the table of pairs; --baseline METHOD draws the differences to one"
    compared = {k: e for k, e in effects.compare_all(study, chosen.baseline, chosen.choice).items() if e.n}
    scenarios = [s for s in study.scenarios if any(scenario == s for _, scenario in compared)]
    if not scenarios:
        return "no method has runs that pair with those of the baseline"
    labels = [base.plain(method_title(method)) for method in study.methods if method != chosen.baseline]
    height = (sum(0.09 + 0.15 * (label.count("\n") + 1) for label in labels) + 0.75) / style.panel_height
    narrow = style if len(scenarios) > 1 else style._replace(width=min(style.width, WIDTH))
    figure, axes = base.grid(narrow, len(scenarios), height, sharey=True, sharex=True)
    baseline = method_title(chosen.baseline)
    rows = []
    for panel, scenario in zip(axes, scenarios, strict=True):
        bars = {
            method: Bar(method_title(method), c.mean, *c.t_interval, effects.outcome(study, c))
            for method in study.methods
            if (c := compared.get((method, scenario)))
        }
        draw_bars(panel, list(bars.values()))
        panel.tick_params(labelbottom=True)
        panel.set(
            title=base.plain(scenario_text(scenario), 40),
            xlabel=base.plain(f"{study.difference_unit} more than {baseline}", 45 if len(scenarios) == 1 else 30),
        )
        rows += [(scenario_text(scenario), method, *bar[1:]) for method, bar in bars.items()]
    title = f"Methods minus {baseline}, {choice_name(study, chosen.choice)}"
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
