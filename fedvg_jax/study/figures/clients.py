"""Clients: their weights over rounds, and the classes that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Frame, Study
from fedvg_jax.study.places import condition_text, seeds_text
from fedvg_jax.study.run import Run
from fedvg_jax.study.tables import Options

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
        absent = {
            *record.get("dropped", ()),
            *record.get("untrained", ()),
            *record.get("diverged", ()),
        }
        cohort = zip(record["clients"], record["num_samples"], record["weights"], strict=True)
        for client, size, weight in cohort:
            share = np.nan
            if weight or (weight == 0 and client not in absent):
                share = weight * len(record["weights"])
            rows.append((client, size, record["round"], share))
    shares = pandas.DataFrame(rows, columns=["client", "rows", "round", "weight_times_cohort"])
    return shares.sort_values(["rows", "client", "round"])


def client_weights(study: Study, chosen: Options) -> list[Drawing]:
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
    title = ", ".join(filter(None, ("Weights of clients", condition_text(condition))))
    return [Drawing("weights", title, _weights_of_runs(shares))]


def _weights_of_runs(shares: Mapping[str, Frame]) -> Figure:
    """Returns a figure with a panel per run: a row per client, a column per round."""
    from matplotlib.colors import LogNorm

    limit = _colour_limit(
        np.concatenate([table["weight_times_cohort"] for table in shares.values()])
    )
    figure, axes = base.grid(len(shares))
    image = None
    for panel, (name, table) in zip(axes, shares.items(), strict=True):
        # a buffered server may have two trainings of a client in one update
        added = table.groupby(["rows", "client", "round"])["weight_times_cohort"].sum(min_count=1)
        grid = added.unstack("round")
        ids = grid.index.get_level_values("client")
        image = panel.imshow(
            np.clip(grid.to_numpy(float), 1 / limit, limit),
            aspect="auto",
            extent=(0.5, grid.shape[1] + 0.5, len(ids) - 0.5, -0.5),
            cmap="RdBu_r",
            norm=LogNorm(1 / limit, limit),
            interpolation="nearest",
        )
        panel.set(xlabel="round", ylabel="client, smallest first", facecolor="0.84")
        panel.set_title(base.plain(name, 40))
        every = -(-len(ids) // MAX_TICKS)
        panel.set_yticks(range(0, len(ids), every), list(map(str, ids[::every])))
        base.whole_numbers(panel.xaxis)
    assert image is not None, "there is a run"
    label = "weight × cohort size (1 is an equal weight, grey is absent)"
    bar = figure.colorbar(
        image, ax=axes, location="bottom", extend="both", shrink=0.8, aspect=40, label=label
    )
    bar.set_ticks([1 / limit, 1, limit], labels=[f"{1 / limit:.2g}", "1", f"{limit:g}"])
    bar.minorticks_off()
    return figure


def _colour_limit(shares: np.ndarray) -> int:
    """Returns the smallest whole number c >= 2 such that 1/c to c holds 98 % of the positive shares."""
    positive = shares[np.isfinite(shares) & (shares > 0)]
    if not positive.size:
        return 2
    ratios = np.exp(np.abs(np.log(positive)))
    return max(2, int(np.ceil(np.quantile(ratios, 0.98))))


# --- classes of clients


def partitions(study: Study, chosen: Options) -> list[Drawing]:
    """Returns a figure of training rows by client and class, a panel per partition of the smallest seeds.

    A square is the darker, the more rows there are, and white for none.
    """
    from matplotlib.colors import LogNorm

    counts: dict[str, tuple[str, Run]] = {}
    for condition in study.conditions:
        runs = [
            run for method in study.methods for run in study.group(method, condition).runs.values()
        ]
        for run in runs[:1]:
            if known := run.partition.get("counts"):
                counts.setdefault(str(known), (condition_text(condition), run))
    if not counts:
        return []
    most = max(2, *(np.max(run.partition["counts"]) for _, run in counts.values()))
    figure, axes = base.grid(len(counts))
    for panel, (text, run) in zip(axes, counts.values(), strict=True):
        rows = np.array(run.partition["counts"]).T
        image = panel.imshow(
            np.where(rows > 0, rows, np.nan),
            aspect="auto",
            cmap="Blues",
            norm=LogNorm(0.5, most),
            interpolation="nearest",
        )
        names = run.partition.get("class_names", ())
        if 0 < len(names) <= MAX_NAMES:
            panel.set_yticks(range(len(names)), [base.plain(str(name), 26) for name in names])
        panel.set(xlabel="client", ylabel="class", title=base.plain(text, 40))
        base.whole_numbers(panel.xaxis)
        bar = figure.colorbar(image, ax=panel, aspect=30, label="rows (white is none)")
        numbers = sorted({1, round(most**0.5), int(most)})
        bar.set_ticks(numbers, labels=[f"{number:,}" for number in numbers])
        bar.minorticks_off()
    return [Drawing("partitions", "Training rows by client and class", figure)]
