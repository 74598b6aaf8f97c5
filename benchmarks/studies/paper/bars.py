"""Bars: methods at one alpha, granularities of the weights, and sources of the validation set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedvg_jax.study.cells import Scenario, Study, majority, results, scenario_text, value_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.figures.curves import metric_label
from fedvg_jax.study.statistics import mean_and_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCES = ("validation.source", "validation.clients")
"""Settings of where the rows of D_val come from."""

BAR_INCHES = 0.22


HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "----")
HATCHES += ("||||", "//..", "oo--", "**", "\\\\..", "||oo", "xx..", "--..")
HATCHES += ("//oo", "||..", "OO", "xx**", "\\\\oo", "--**", "xxoo", "||**")
"""Patterns of bars, one for each of 24 methods."""


class Bar(NamedTuple):
    """One bar."""

    label: str
    mean: float
    std: float
    n: int
    method: str


class Group(NamedTuple):
    """The bars of one panel."""

    title: str
    bars: list[Bar]
    line: float | None
    """Accuracy of always answering the largest class."""


def methods_at_smallest_alpha(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with a bar per method and a panel per setting, at the smallest alpha that each setting has."""
    smallest: dict[Scenario, Scenario] = {}
    for scenario in study.scenarios:
        rest = tuple(pair for pair in scenario if pair[0] != "alpha")
        smallest[rest] = min(smallest.get(rest, scenario), scenario, key=_alpha)
    alphas = {_alpha(scenario) for scenario in smallest.values()}
    where = ""
    if any(map(math.isfinite, alphas)):
        where = f" at alpha {value_text(min(alphas))}" if len(alphas) == 1 else " at the smallest alpha"
    groups = [group(study, scenario) for scenario in smallest.values()]
    return [draw(study, style, "bars", f"Methods{where}", groups)]


def _alpha(scenario: Scenario) -> float:
    """Returns alpha of a scenario; infinite where it has none."""
    return dict(scenario).get("alpha", math.inf)


def granularities(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with a bar per granularity of FedVG's weights, with a panel per scenario."""
    methods = [method for method in study.methods if "granularity " in method]
    if len(methods) < 2:
        return "the runs have one granularity; a sweep varies it with --fedvg.granularity"
    groups = [group(study, scenario) for scenario in study.scenarios]
    return [draw(study, style, "granularity", "Granularity of the weights", groups)]


def validation_sources(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with a bar per source of the validation set, with a panel for each of the other settings.

    Scenarios without the setting, such as `validation.clients` beside a global split, have no bar.
    """
    values = {s: {dict(scenario)[s] for scenario in study.scenarios if s in dict(scenario)} for s in SOURCES}
    source = next((s for s in SOURCES if len(values[s]) > 1), None)
    if source is None:
        return f"the runs have one validation set; a sweep varies it with --{SOURCES[0]}"
    groups: dict[Scenario, list[Bar]] = {}
    lines: dict[Scenario, float | None] = {}
    for scenario in (scenario for scenario in study.scenarios if source in dict(scenario)):
        rest = tuple(pair for pair in scenario if pair[0] != source)
        for method in study.methods:
            if bar := bar_of(study, scenario, method):
                label = f"{method}, {source.split('.')[1]} {value_text(dict(scenario)[source])}"
                groups.setdefault(rest, []).append(bar._replace(label=label))
                lines[rest] = majority(study, method, scenario)
    panels = [Group(scenario_text(rest), several, lines[rest]) for rest, several in groups.items()]
    return [draw(study, style, "external", "Source of the validation set", panels)]


def group(study: Study, scenario: Scenario) -> Group:
    """Returns the bars of all methods in a scenario."""
    bars = [bar for method in study.methods if (bar := bar_of(study, scenario, method))]
    shares = [share for method in study.methods if (share := majority(study, method, scenario)) is not None]
    return Group(scenario_text(scenario), bars, float(np.mean(shares)) if shares else None)


def bar_of(study: Study, scenario: Scenario, method: str) -> Bar | None:
    """Returns the bar of a method in a scenario; None without a result."""
    values = list(results(study, study.cell(method, scenario)).values())
    return Bar(method, *mean_and_std(values), len(values), method) if values else None


def draw(study: Study, style: Style, name: str, title: str, groups: Sequence[Group]) -> Drawing:
    """Returns a figure with a panel of horizontal bars per group; names stand beside the bars."""
    groups = [group for group in groups if group.bars]
    most = max((len(group.bars) for group in groups), default=1)
    height = (BAR_INCHES * (most + (1 if any(g.line is not None for g in groups) else 0)) + 0.75) / style.panel_height
    figure, axes = base.grid(style, max(1, len(groups)), height)
    rows = []
    for panel, group in zip(axes, groups, strict=False):
        _panel(study, panel, group, style)
        rows += [(group.title, bar.label, bar.mean, bar.std, bar.n) for bar in group.bars]
    for i, panel in enumerate(axes[: len(groups)]):
        repeats = [bar.label for bar in groups[i].bars] == [bar.label for bar in groups[0].bars]
        if repeats and i % style.panels_per_row:
            panel.tick_params(axis="y", labelleft=False)
    figure.supxlabel(metric_label(study), fontsize=style.font)
    return Drawing(name, title, figure, ("setting", "bar", "mean", "std", "n"), rows)


def _panel(study: Study, axes: Axes, group: Group, style: Style) -> None:
    """Draws one panel: bars from 0, deviations, and the value at the end of each bar."""
    styles = base.line_styles(study.methods)
    span = (0.0, 100.0) if study.metric == "accuracy" else (-np.inf, np.inf)
    ends = [np.clip(bar.mean + sign * np.nan_to_num(bar.std), *span) for bar in group.bars for sign in (-1, 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    reach = high - low
    for place, bar in enumerate(group.bars):
        hatch = HATCHES[study.methods.index(bar.method) % len(HATCHES)]
        colour = styles[bar.method]["color"]
        axes.barh(place, bar.mean, 0.72, color=colour, alpha=0.35, edgecolor=colour, hatch=hatch, lw=0.8)
        if np.isfinite(bar.std):
            deviations = [[min(bar.std, bar.mean - span[0])], [min(bar.std, span[1] - bar.mean)]]
            axes.errorbar([bar.mean], [place], xerr=deviations, color="black", lw=0.8, capsize=2)
        text = f"{bar.mean:.1f}" if study.metric == "accuracy" else f"{bar.mean:.3f}"
        end = min(bar.mean + np.nan_to_num(bar.std), span[1])
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=style.font - 1)
    axes.set_yticks(range(len(group.bars)), [base.plain(bar.label, 34) for bar in group.bars])
    axes.set_xlim(low - 0.05 * reach if low < 0 else 0, low + 1.18 * reach)  # with room for the values
    axes.set_xticks([tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= min(high * 1.18, span[1])])
    axes.set_ylim(len(group.bars) - 0.4 + (0.7 if group.line is not None else 0), -0.6)
    if group.line is not None:
        axes.axvline(group.line, color=base.GREY, lw=0.9, ls=":")
        axes.text(
            group.line + 0.01 * reach, len(group.bars) - 0.1, "largest class", color=base.GREY, va="center",
            fontsize=style.font - 1,
        )  # fmt: skip
    axes.set_title(base.plain(group.title))
    axes.tick_params(axis="y", length=0)
    base.clean(axes, "x")
