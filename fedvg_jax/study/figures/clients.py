"""Clients: their weights over rounds, and the classes that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Run, Scenario, Study, panels, replicate_text, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.views.output import partition_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WEIGHTS = ("setting", "method", "seed", "partition_seed", "client", "rows", "round", "weight_times_cohort")
"""Columns of the numbers of `client_weights`."""

MAX_TICKS = 9
"""Most clients that a panel names."""

MAX_NAMES = 30
"""Most classes that are named."""


def weight_shares(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the clients that took part in any round, smallest first, with their sizes and weights.

    Args:
        records: one per round.

    Returns:
        ids [M], training rows n_k [M], and weight times cohort size [M, R]; NaN in rounds in which the client was not
        sampled, dropped out, took no step or diverged.

    >>> ids, sizes, shares = weight_shares([{"clients": [4, 2], "weights": [0.25, 0.75], "num_samples": [9, 5]}])
    >>> ids.tolist(), sizes.tolist(), shares.tolist()
    ([2, 4], [5, 9], [[1.5], [0.5]])
    """
    size_of = {k: n for r in records for k, n in zip(r["clients"], r["num_samples"], strict=True)}
    ids = sorted(size_of, key=lambda k: (size_of[k], k))
    row_of = {k: row for row, k in enumerate(ids)}
    shares = np.full((len(ids), len(records)), np.nan)
    for column, record in enumerate(records):
        absent = {k for reason in ("dropped", "untrained", "diverged") for k in record.get(reason, ())}
        for k, weight in zip(record["clients"], record["weights"], strict=True):
            if weight is not None and (weight or k not in absent):
                shares[row_of[k], column] = weight * len(record["weights"])
    return np.array(ids), np.array([size_of[k] for k in ids]), shares


def client_weights(study: Study) -> list[Drawing]:
    """Returns a figure of every client's weight times cohort size over rounds, a panel per method.

    Each panel has the run of a method's smallest seed in the first scenario of its group.
    """
    drawn = []
    for i, scenarios in enumerate(panels(study).values()):
        with_runs = [cell for method in study.methods if (cell := study.cell(method, scenarios[0])).runs]
        shown = [(cell.method, *min(cell.runs.items())) for cell in with_runs]
        if not shown:
            continue
        names = [f"{method_title(method)}, {replicate_text(replicate)}" for method, replicate, _ in shown]
        figure, values = _weights_of_runs(names, [run.records for *_, run in shown])
        where, rows = scenario_text(scenarios[0]), []
        for (method, replicate, run), (ids, sizes, shares) in zip(shown, values, strict=True):
            rows += [
                (where, method, *replicate, int(ids[k]), int(sizes[k]), run.records[r]["round"], shares[k, r])
                for k, r in np.argwhere(np.isfinite(shares))
            ]
        title = ", ".join(filter(None, ("Weights of clients", where)))
        drawn.append(Drawing(base.numbered("weights", i), title, figure, WEIGHTS, rows))
    return drawn


def _weights_of_runs(names: Sequence[str], runs: Sequence[Sequence[Record]]) -> tuple[Figure, list]:
    """Returns a figure with a panel per run, and what `weight_shares` returns of each."""
    from matplotlib.colors import LogNorm

    values = [weight_shares(records) for records in runs]
    limit = _colour_limit(np.concatenate([shares.ravel() for *_, shares in values]))
    figure, axes = base.grid(len(runs))
    image = None
    for panel, name, (ids, _, shares) in zip(axes, names, values, strict=True):
        image = panel.imshow(
            np.clip(shares, 1 / limit, limit),
            aspect="auto",
            extent=(0.5, shares.shape[1] + 0.5, len(ids) - 0.5, -0.5),
            cmap="RdBu_r",
            norm=LogNorm(1 / limit, limit),
            interpolation="nearest",
        )
        panel.set(xlabel="round", ylabel="client, smallest first", facecolor="0.84", title=base.plain(name, 40))
        every = -(-len(ids) // MAX_TICKS)
        panel.set_yticks(range(0, len(ids), every), [str(k) for k in ids[::every]])
        base.whole_numbers(panel.xaxis)
    assert image is not None, "there is a run"
    label = "weight × cohort size (1 is an equal weight, grey is absent)"
    bar = figure.colorbar(image, ax=axes, location="bottom", extend="both", shrink=0.8, aspect=40, label=label)
    bar.set_ticks([1 / limit, 1, limit], labels=[f"{1 / limit:.2g}", "1", f"{limit:g}"])
    bar.minorticks_off()
    return figure, values


def _colour_limit(shares: np.ndarray) -> int:
    """Returns the smallest whole number c >= 2 such that 1/c to c holds 98 % of the positive shares."""
    positive = shares[np.isfinite(shares) & (shares > 0)]
    return max(2, int(np.ceil(np.exp(np.quantile(np.abs(np.log(positive)), 0.98))))) if positive.size else 2


# --- classes of clients


def partitions(study: Study) -> list[Drawing]:
    """Returns a figure of training rows by client and class, a panel per partition of the smallest seeds."""
    runs: dict[str, tuple[Scenario, Run]] = {}
    for scenario in study.scenarios:
        cells = (study.cell(method, scenario) for method in study.methods)
        run = next((cell.runs[min(cell.runs)] for cell in cells if cell.runs), None)
        if run and run.partition.get("counts"):
            runs.setdefault(str(run.partition["counts"]), (scenario, run))
    if not runs:
        return []
    texts = [partition_label(run.config) for _, run in runs.values()]
    if len({*texts}) < len(texts):
        texts = [scenario_text(scenario) for scenario, _ in runs.values()]
    figure, axes = base.grid(len(runs), 1.05)
    all_counts = [np.array(run.partition["counts"]) for _, run in runs.values()]
    largest = max(int(counts.max()) for counts in all_counts)
    rows = []
    for panel, text, (_, run), counts in zip(axes, texts, runs.values(), all_counts, strict=True):
        names = [str(name) for name in run.partition.get("class_names", range(counts.shape[1]))]
        draw_counts(panel, counts, largest, names if len(names) <= 12 else ())
        panel.set_title(base.plain(text, 40))
        rows += [(text, k, names[c], int(counts[k, c])) for k, c in np.ndindex(*counts.shape)]
    title = f"Training rows by client and class; darkness shows their number, at most {largest:,}"
    return [Drawing("partitions", title, figure, ("setting", "client", "class", "rows"), rows)]


def one_partition(counts: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Returns a figure of the number of labels by client and class.

    Args:
        counts: int [N, C].
        names: of the classes.
        title: text above the figure.
    """
    from matplotlib.figure import Figure

    size = (float(np.clip(0.13 * len(counts), 5.5, 14)) + 2, float(np.clip(0.3 * len(names), 2.2, 9)) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    draw_counts(figure.subplots(), counts, int(counts.max()), names if len(names) <= MAX_NAMES else ())
    figure.suptitle(base.plain(title, int(12 * size[0])), x=0.01, ha="left", size=11)
    return figure


def draw_counts(axes: Axes, counts: np.ndarray, largest: int, names: Sequence[str] = ()) -> None:
    """Draws a cell for every client and class; its darkness is the number of rows, and white is none.

    Args:
        axes: where to draw.
        counts: int [N, C].
        largest: number of rows of the darkest cell.
        names: of the classes; none where they are not named.
    """
    from matplotlib.colors import LogNorm

    shown = np.where(counts > 0, counts, np.nan).T
    axes.imshow(shown, aspect="auto", cmap="Blues", norm=LogNorm(0.5, max(largest, 2)), interpolation="nearest")
    if names:
        axes.set_yticks(range(len(names)), [base.plain(name, 26) for name in names])
    axes.set(xlabel="client", ylabel="class")
    base.whole_numbers(axes.xaxis)
