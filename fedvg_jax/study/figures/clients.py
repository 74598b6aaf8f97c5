"""Clients: their weights over rounds, and the classes that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.config import method_title
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Frame, Study, panels
from fedvg_jax.study.places import Condition, Seeds, condition_text, seeds_text
from fedvg_jax.study.run import Run
from fedvg_jax.views.output import partition_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MAX_TICKS = 9
"""Most clients that a panel names."""

MAX_NAMES = 30
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


def client_weights(study: Study) -> list[Drawing]:
    """Returns a figure of every client's weight times cohort size over rounds, a panel per method.

    Each panel has the run of a method's smallest seed in the first condition of its group.
    """
    import pandas

    drawn = []
    for i, (condition, *_) in enumerate(panels(study).values()):
        found = [study.group(method, condition) for method in study.methods]
        runs = {
            (group.method, min(group.runs)): group.runs[min(group.runs)]
            for group in found
            if group.runs
        }
        if runs:
            shares = {key: weight_shares(run.records) for key, run in runs.items()}
            names = [_name(study, *key) for key in runs]
            figure = _weights_of_runs(names, list(shares.values()))
            numbers: Frame = pandas.concat(
                {(method, *seeds): shares[method, seeds] for method, seeds in runs}
            )
            numbers = numbers.dropna().reset_index([0, 1, 2])
            numbers.columns = ["method", "seed", "partition_seed", *numbers.columns[3:]]
            numbers.insert(0, "setting", condition_text(condition))
            title = base.titled("Weights of clients", condition)
            drawn.append(Drawing(base.numbered("weights", i), title, figure, numbers))
    return drawn


def _name(study: Study, method: str, seeds: Seeds) -> str:
    """Returns the name of a run: its method and seed, with its partition's seed where runs of one seed have several."""
    partitions = study.frame.groupby("seed")["partition_seed"].nunique()
    seed = f"seed {seeds[0]}" if partitions.max() == 1 else seeds_text(seeds)
    return f"{method_title(method)}, {seed}"


def _weights_of_runs(names: Sequence[str], shares: Sequence[Frame]) -> Figure:
    """Returns a figure with a panel per run: a row per client, a column per round."""
    from matplotlib.colors import LogNorm

    limit = _colour_limit(np.concatenate([table["weight_times_cohort"] for table in shares]))
    figure, axes = base.grid(len(shares))
    image = None
    for panel, name, table in zip(axes, names, shares, strict=True):
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
        base.set_title(panel, name)
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


def partitions(study: Study) -> list[Drawing]:
    """Returns a figure of training rows by client and class, a panel per partition of the smallest seeds."""
    import pandas

    first = (
        study.frame[study.frame["run"].notna()]
        .drop_duplicates("condition")
        .sort_values("condition")
    )
    runs: dict[str, tuple[Condition, Run]] = {}
    for position, run in zip(first["condition"], first["run"], strict=True):
        if counts := run.partition.get("counts"):
            runs.setdefault(str(counts), (study.conditions[position], run))
    if not runs:
        return []
    texts = [partition_label(run.config) for _, run in runs.values()]
    if len({*texts}) < len(texts):
        texts = [condition_text(condition) for condition, _ in runs.values()]
    figure, axes = base.grid(len(runs), 1.05)
    largest = max(np.max(run.partition["counts"]) for _, run in runs.values())
    rows: list[tuple] = []
    image = None
    for panel, text, (_, run) in zip(axes, texts, runs.values(), strict=True):
        counts = np.array(run.partition["counts"])
        names = [str(name) for name in run.partition.get("class_names", range(counts.shape[1]))]
        image = draw_counts(panel, counts, largest, names if len(names) <= 12 else ())
        base.set_title(panel, text)
        rows += [(text, k, names[c], number) for (k, c), number in np.ndenumerate(counts)]
    add_key(figure, axes, image)
    numbers = pandas.DataFrame(rows, columns=["setting", "client", "class", "rows"])
    return [Drawing("partitions", "Training rows by client and class", figure, numbers)]


def draw_counts(
    axes: Axes, counts: np.ndarray, largest: int, names: Sequence[str] = ()
) -> AxesImage:
    """Draws a square for every client and class; it is the darker, the more rows there are, and white for none.

    Args:
        axes: where to draw.
        counts: int [N, C].
        largest: number of rows of the darkest square.
        names: of the classes; none where they are not named.
    """
    from matplotlib.colors import LogNorm

    shown = np.where(counts > 0, counts, np.nan).T
    norm = LogNorm(0.5, max(largest, 2))
    image = axes.imshow(shown, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    if names:
        axes.set_yticks(range(len(names)), [base.plain(name, 26) for name in names])
    axes.set(xlabel="client", ylabel="class")
    base.whole_numbers(axes.xaxis)
    return image


def add_key(figure: Figure, axes: Sequence[Axes], image: AxesImage | None) -> None:
    """Adds the key of the panels: the number of rows of the squares."""
    assert image is not None, "there is a partition"
    least, most = 1, int(image.get_clim()[1] or 2)
    middle = round((least * most) ** 0.5)
    bar = figure.colorbar(
        image, ax=list(axes), location="right", aspect=30, label="rows (white is none)"
    )
    numbers = sorted({least, middle, most})
    bar.set_ticks(numbers, labels=[f"{number:,}" for number in numbers])
    bar.minorticks_off()
