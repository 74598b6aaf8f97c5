"""Clients' weights over rounds, and the effective number of clients that they amount to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Cell, Run, Study, panels, replicate_text, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.views.plots import weight_shares

MAX_PANELS = 8


def client_weights(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of every client's weight times cohort size over rounds, one client bold, a panel per method.

    Each panel has a run of a method in the first scenario of its group: of the smallest seed that all of them share,
    or else the method's own smallest, which the panel's title then names.
    """
    drawn = []
    for i, scenarios in enumerate(panels(study).values()):
        cells = [study.cell(method, scenarios[0]) for method in study.methods]
        recorded = [cell for cell in cells if cell.runs and any(r["clients"] for r in _first(cell).records)]
        cells = recorded[:MAX_PANELS]
        shared = set.intersection(*(set(cell.runs) for cell in cells)) if cells else set()
        chosen = [min(shared or cell.runs) for cell in cells]
        if not cells:
            continue
        figure, axes = base.grid(style, len(cells), 0.9, sharey=True)
        rows: list[tuple] = []
        runs = [cell.runs[replicate] for cell, replicate in zip(cells, chosen, strict=True)]
        for panel, cell, run, replicate in zip(axes, cells, runs, chosen, strict=True):
            of_panel = _panel(panel, run, bold_client(run), style)
            rows += [(cell.method, *replicate, *row) for row in of_panel]
            name = cell.method if shared else f"{cell.method}, {replicate_text(replicate)}"
            panel.set(xlabel="round", title=base.plain(name, 40))
        for panel, run in zip(axes, runs, strict=True):  # after all have drawn, because they share their limits
            _label(panel, run, bold_client(run), style)
        where = scenario_text(scenarios[0])
        part = f"first {len(cells)} of {len(recorded)} methods" if len(recorded) > len(cells) else ""
        seeds = replicate_text(chosen[0]) if shared else ""
        parts = ("Weights of clients; 1 is an equal weight", where, seeds, part)
        title = ", ".join(filter(None, parts))
        figure.supylabel("weight × cohort size", fontsize=style.font)
        stem = "weights" if i == 0 else f"weights-{i + 1}"
        columns = (
            *("setting", "method", "seed", "partition_seed"),
            *("client", "rows", "bold", "round", "weight_times_cohort"),
        )
        drawn.append(Drawing(stem, title, figure, columns, [(where, *row) for row in rows]))
    return drawn or "no record has clients"


def _first(cell: Cell) -> Run:
    """Returns the run of the smallest seed."""
    return cell.runs[min(cell.runs)]


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
    ids, sizes, shares = weight_shares(run.records)
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


def _label(axes, run: Run, bold: int, style: Style) -> None:
    """Writes the name of the bold client beside its last weight."""
    ids, _, shares = weight_shares(run.records)
    weights = shares[list(ids).index(bold)]
    present = np.flatnonzero(np.isfinite(weights))
    if len(present):
        end = run.records[present[-1]]["round"], weights[present[-1]], f"client {bold}", base.COLOURS[1]
        base.label_ends(axes, [end], style, 0.9)


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
        lines = {}
        for method in study.methods:
            runs = [_effective(run.records) for run in study.cell(method, scenario).runs.values()]
            if runs:
                length = min(map(len, runs))
                lines[method] = np.nanmean([run[:length] for run in runs], 0)
        for method, values in lines.items():
            rounds = np.arange(1, len(values) + 1)
            look = styles[method]
            every = max(1, len(values) // 6)
            panel.plot(rounds, values, color=look.colour, ls=look.dashes, marker=look.marker, ms=3, markevery=every)
            rows += [(scenario_text(scenario), method, int(r), v) for r, v in zip(rounds, values, strict=True)]
        panel.set_ylim(bottom=0)
        panel.set(xlabel="round", title=base.plain(scenario_text(scenario)))
        base.whole_numbers(panel.xaxis)
        base.clean(panel)
        ends = [(len(values), values[-1], method, styles[method].colour) for method, values in lines.items()]
        base.label_ends(panel, [end for end in ends if np.isfinite(end[1])], style)
    figure.supylabel(r"effective clients $1/\sum_k s_k^2$", fontsize=style.font)
    columns = ("setting", "method", "round", "effective_clients")
    return [Drawing("effective_clients", "Effective number of clients", figure, columns, rows)]


def _effective(records: Sequence[Record]) -> list[float]:
    return [effective_clients([weight or 0.0 for weight in record["weights"]]) for record in records]
