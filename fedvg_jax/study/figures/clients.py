"""Clients: their weights over rounds, and the classes that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.places import condition_text, seeds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TICKS = 9
"""Most clients that a panel names."""

MAX_NAMES = 12
"""Most classes that are named."""


def weight_shares(records: Sequence[Record]) -> Frame:
    """Returns a row for every client in the cohort of a round, with its training rows and its weight times cohort size.

    The weight is NaN where the client dropped out, took no step or diverged.

    >>> weight_shares([{"round": 1, "clients": [4, 2], "weights": [0.25, 0.75], "num_samples": [9, 5]}])
       client  rows  round  weight_times_cohort
    1       2     5      1                  1.5
    0       4     9      1                  0.5
    """
    import pandas

    rows = []
    for record in records:
        reasons = ("dropped", "untrained", "diverged")
        left_out = {client for reason in reasons for client in record.get(reason, ())}
        cohort = zip(record["clients"], record["num_samples"], record["weights"], strict=True)
        for client, size, weight in cohort:
            share = np.nan
            if weight or (weight == 0 and client not in left_out):
                share = weight * len(record["weights"])
            rows.append((client, size, record["round"], share))
    shares = pandas.DataFrame(rows, columns=["client", "rows", "round", "weight_times_cohort"])
    return shares.sort_values(["rows", "client", "round"])


def client_weights(study: Study) -> list[Drawing]:
    """Returns a figure of every client's weight times cohort size over rounds in the first condition.

    A panel has the run of a method's smallest seed.
    """
    condition = study.conditions[0]
    shares = {}
    for method in study.methods:
        if runs := study.group(method, condition).runs:
            name = f"{method_title(method)}, {seeds_text(min(runs))}"
            shares[name] = weight_shares(runs[min(runs)].records)
    if not shares:
        return []
    title = f"Weights of clients, {condition_text(condition)}".removesuffix(", ")
    return [Drawing("weights", title, _weights_of_runs(shares))]


def _weights_of_runs(shares: Mapping[str, Frame]) -> Figure:
    """Returns a figure with a panel per run: a row per client, a column per round."""
    every = np.concatenate([table["weight_times_cohort"] for table in shares.values()])
    limit = _colour_limit(every)
    figure, axes = base.grid(len(shares))
    image: Any = None
    for panel, (name, table) in zip(axes, shares.items(), strict=True):
        # a buffered server may have two trainings of a client in one update
        by_round = table.groupby(["rows", "client", "round"])["weight_times_cohort"]
        grid = by_round.sum(min_count=1).unstack("round")
        ids = grid.index.get_level_values("client")
        extent = 0.5, grid.shape[1] + 0.5, len(ids) - 0.5, -0.5
        values = np.clip(grid.to_numpy(float), 1 / limit, limit)
        image = base.heatmap(panel, values, (1 / limit, limit), "RdBu_r", extent=extent)
        panel.set(xlabel="round", ylabel="client, smallest first", facecolor="0.84")
        panel.set_title(base.plain(name, 40))
        step = -(-len(ids) // MAX_TICKS)
        panel.set_yticks(range(0, len(ids), step), ids[::step])
        base.whole_numbers(panel.xaxis)
    ticks = {1 / limit: f"{1 / limit:.2g}", 1: "1", limit: f"{limit:g}"}
    base.add_colour_bar(
        image,
        ticks,
        ax=axes,
        location="bottom",
        extend="both",
        shrink=0.8,
        aspect=40,
        label="weight × cohort size (1 is an equal weight, grey did not participate)",
    )
    return figure


def _colour_limit(shares: np.ndarray) -> int:
    """Returns the smallest whole number c >= 2 such that 1/c to c holds 98 % of the positive shares."""
    positive = shares[shares > 0]
    if not positive.size:
        return 2
    ratios = np.exp(np.abs(np.log(positive)))
    return max(2, int(np.ceil(np.quantile(ratios, 0.98))))


# --- classes of clients


def partitions(study: Study) -> list[Drawing]:
    """Returns a figure of training rows by client and class, a panel per partition of the smallest seeds.

    A square is the darker, the more rows there are, and white for none.
    """
    drawn = {}
    for condition in study.conditions:
        groups = [study.group(method, condition) for method in study.methods]
        runs = [run for group in groups for run in group.runs.values()]
        partition = runs[0].partition if runs else {}
        if "counts" in partition:
            drawn.setdefault(str(partition["counts"]), (condition_text(condition), partition))
    if not drawn:
        return []
    most = max(2, *(np.max(partition["counts"]) for _, partition in drawn.values()))
    ticks = {number: f"{number:,}" for number in sorted({1, round(most**0.5), int(most)})}
    figure, axes = base.grid(len(drawn))
    for panel, (text, partition) in zip(axes, drawn.values(), strict=True):
        rows = np.array(partition["counts"]).T
        image = base.heatmap(panel, np.where(rows > 0, rows, np.nan), (0.5, most), "Blues")
        names = partition.get("class_names", ())
        if len(names) <= MAX_NAMES:
            panel.set_yticks(range(len(names)), [base.plain(name, 26) for name in names])
        panel.set(xlabel="client", ylabel="class", title=base.plain(text, 40))
        base.whole_numbers(panel.xaxis)
        base.add_colour_bar(image, ticks, ax=panel, aspect=30, label="rows (white is none)")
    return [Drawing("partitions", "Training rows by client and class", figure)]
