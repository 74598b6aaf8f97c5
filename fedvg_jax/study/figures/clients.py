"""Clients: their weights over rounds, the effective number that these amount to, and the classes that they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Run, Scenario, Study, panels, replicate_text, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.views import plots
from fedvg_jax.views.labels import method_label, partition_label

MAX_PANELS = 8

WEIGHTS = ("setting", "method", "seed", "partition_seed", "client", "rows", "bold", "round", "weight_times_cohort")
"""Columns of the numbers of `client_weights`."""


def client_weights(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of every client's weight times cohort size over rounds, one client bold, a panel per method.

    Each panel has a run of a method in the first scenario of its group: of the smallest seed that all of them share,
    or else the method's own smallest, which the panel's title then names.
    """
    drawn = []
    for i, scenarios in enumerate(panels(study).values()):
        with_runs = [cell for method in study.methods if (cell := study.cell(method, scenarios[0])).runs]
        cells = with_runs[:MAX_PANELS]
        shared = set.intersection(*(set(cell.runs) for cell in cells)) if cells else set()
        chosen = [min(shared or cell.runs) for cell in cells]
        if not cells:
            continue
        figure, axes = base.grid(style, len(cells), 0.9, sharey=True)
        where, rows = scenario_text(scenarios[0]), []
        for panel, cell, replicate in zip(axes, cells, chosen, strict=True):
            run = cell.runs[replicate]
            bold = bold_client(run)
            rows += [(where, cell.method, *replicate, *row) for row in _panel(panel, run, bold, style)]
            names = (method_label(cell.method), "" if shared else replicate_text(replicate), f"bold: client {bold}")
            panel.set(xlabel="round", title=base.plain(", ".join(filter(None, names)), 40))
        part = f"first {len(cells)} of {len(with_runs)} methods" if len(with_runs) > len(cells) else ""
        seeds = replicate_text(chosen[0]) if shared else ""
        title = ", ".join(filter(None, ("Weights of clients; 1 is an equal weight", where, seeds, part)))
        figure.supylabel("weight × cohort size", fontsize=style.font)
        stem = "weights" if i == 0 else f"weights-{i + 1}"
        drawn.append(Drawing(stem, title, figure, WEIGHTS, rows))
    return drawn or "no method has runs in the first scenario"


def bold_client(run: Run) -> int:
    """Returns the client whose classes are the most even, of those that took part; the first one without classes."""
    present = sorted({client for record in run.records for client in record["clients"]})
    counts = run.partition.get("counts")
    if not counts:
        return present[0]
    from scipy.stats import entropy

    return max(present, key=lambda k: entropy(counts[k]) if any(counts[k]) else 0.0)


def _panel(axes, run: Run, bold: int, style: Style) -> list[tuple]:
    """Draws the clients of one run; returns the rows of the CSV file."""
    ids, sizes, shares = plots.weight_shares(run.records)
    rounds = np.array([record["round"] for record in run.records])
    rows = []
    for client, size, values in zip(ids, sizes, shares, strict=True):
        present = np.isfinite(values)
        is_bold, is_point = client == bold, present.sum() == 1
        axes.plot(
            rounds[present], values[present], color=base.COLOURS[1] if is_bold else "0.6", zorder=3 if is_bold else 2,
            lw=1.4 * style.line if is_bold else 0.5, marker="o" if is_bold or is_point else None,
            ms=2.5 if is_bold else 1.5,
        )  # fmt: skip
        rows += [(int(client), int(size), int(is_bold), int(r), v) for r, v in zip(rounds, values, strict=True)
                 if np.isfinite(v)]  # fmt: skip
    axes.axhline(1, color="black", lw=0.7, ls=":")
    axes.set_yscale("log")
    base.log_ticks(axes.yaxis)
    base.whole_numbers(axes.xaxis)
    base.clean(axes)
    return rows


def effective_clients(weights: Sequence[float]) -> float:
    """Returns 1 / sum of squared weights, the number of equally weighted clients with the same concentration.

    >>> effective_clients([0.5, 0.5, 0.0])
    2.0
    """
    squares = sum(weight**2 for weight in weights)
    return 1 / squares if squares else float("nan")


def effective_number(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of the effective number of clients over rounds, a panel per scenario: means over runs."""
    figure, axes = base.grid(style, len(study.scenarios))
    styles = base.line_styles(study.methods)
    rows = []
    for panel, scenario in zip(axes, study.scenarios, strict=True):
        for method in study.methods:
            runs = [_effective(run.records) for run in study.cell(method, scenario).runs.values()]
            if not runs:
                continue
            length = min(map(len, runs))
            values, rounds = np.nanmean([run[:length] for run in runs], 0), np.arange(1, length + 1)
            panel.plot(rounds, values, ms=3, markevery=max(1, length // 6), **styles[method])
            rows += [(scenario_text(scenario), method, int(r), v) for r, v in zip(rounds, values, strict=True)]
        panel.set_ylim(bottom=0)
        panel.set(xlabel="round", title=base.plain(scenario_text(scenario)))
        base.whole_numbers(panel.xaxis)
        base.clean(panel)
    figure.supylabel(r"effective clients $1/\sum_k s_k^2$", fontsize=style.font)
    columns = ("setting", "method", "round", "effective_clients")
    return [Drawing("effective_clients", "Effective number of clients", figure, columns, rows)]


def _effective(records: Sequence[Record]) -> list[float]:
    return [effective_clients([weight or 0.0 for weight in record["weights"]]) for record in records]


def partitions(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of training rows by client and class, a panel per partition."""
    runs = [(scenario, run) for scenario, run in _first_runs(study) if run.partition.get("counts")]
    if not runs:
        return "no run has a partition.json with the classes of its clients"
    different = _distinct_runs(runs, lambda run: run.partition["counts"])
    figure, axes = base.grid(style, len(different), 1.05)
    all_counts = [np.array(run.partition["counts"]) for _, run in different]
    largest = max(int(counts.max()) for counts in all_counts)
    rows = []
    for panel, (setting, run), counts in zip(axes, different, all_counts, strict=True):
        plots.classes_of_clients(panel, counts, largest)
        names = [str(name) for name in run.partition.get("class_names", range(counts.shape[1]))]
        if len(names) <= 12:
            panel.set_yticks(range(len(names)), [base.plain(name, 14) for name in names])
        panel.set(xlabel="client", ylabel="class", title=base.plain(setting or partition_label(run.config)))
        cells = np.ndindex(*counts.shape)
        rows += [(setting, k, names[c], int(counts[k, c])) for k, c in cells]
    shown = " or ".join(sorted({"area" if counts.size <= plots.MAX_BUBBLES else "darkness" for counts in all_counts}))
    title = f"Training rows by client and class; {shown} shows the number of rows, at most {largest:,}"
    return [Drawing("partitions", title, figure, ("setting", "client", "class", "rows"), rows)]


def _first_runs(study: Study) -> list[tuple[Scenario, Run]]:
    """Returns the run of the smallest seed in every scenario, of the first method that has one."""
    first = []
    for scenario in study.scenarios:
        cells = [study.cell(method, scenario) for method in study.methods]
        if runs := next((cell.runs for cell in cells if cell.runs), None):
            first.append((scenario, runs[min(runs)]))
    return first


def _distinct_runs(runs: Sequence[tuple[Scenario, Run]], key: Callable[[Run], Any]) -> list[tuple[str, Run]]:
    """Returns the runs that differ in a key, each with the settings that it stands for.

    These are the settings that all scenarios of one key share, if no scenario of another key has all of them, too.
    Otherwise they are those of the first scenario.
    """
    different: list[tuple[str, Run]] = []
    for scenario, run in runs:
        alike = [other for other, its_run in runs if key(its_run) == key(run)]
        if scenario != alike[0]:
            continue
        shared = tuple(pair for pair in scenario if all(pair in other for other in alike))
        is_unique = sum(set(shared) <= set(other) for other, _ in runs) == len(alike)
        different.append((scenario_text(shared if is_unique else scenario), run))
    return different
