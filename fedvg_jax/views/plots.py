"""Pictures: accuracy or loss over the rounds of a run, its clients' weights, and the classes of every client."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs.record.history import Record
from fedvg_jax.views.labels import run_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"test": "#1f5fa8", "val": "#d9822b"}
"""Part -> colour of its curve."""

MAJORITY = "0.5"
"""Grey of the majority-class line."""

LABEL_INCHES = 0.14
"""Height of a client's label, below which only some clients are labelled."""


def write(folder: Path, records: Sequence[Record], config: Config) -> list[Path]:
    """Draws `accuracy.png`, or `loss.png` for a task without accuracy, and `weights.png`.

    Args:
        folder: run folder.
        records: one per round, as in history.jsonl.
        config: settings of the run, for the titles.

    Returns:
        The paths of the pictures; none for a run without a round.
    """
    figures = {}
    with drawing():
        measured = (m for m in ("accuracy", "loss") if any(r.get(f"test_{m}") is not None for r in records))
        for metric in [*measured][:1]:
            figures[f"{metric}.png"] = curves(records, metric, run_label(config))
        if any(r["clients"] for r in records):
            figures["weights.png"] = weights(records, run_label(config))
        for name, figure in figures.items():
            try:
                with files.drafting(folder / name) as draft:
                    figure.savefig(draft, dpi=130, format="png")
            except OSError as error:
                again = f"python -m fedvg_jax.plots {folder}"
                raise UsageError(f"cannot draw {folder / name}: {files.reason(error)}; fix it, then {again}") from None
    return [folder / name for name in figures]


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Uses Matplotlib without a display, and silences its warnings about fonts, layouts and its own folders."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib

        matplotlib.use("Agg")
        yield


def curves(records: Sequence[Record], metric: str, title: str) -> Figure:
    """Returns a figure of a metric on test and validation rows over rounds, accuracy in percent.

    Accuracy has a line of always answering the largest class.

    Args:
        records: one per round.
        metric: "accuracy" or "loss".
        title: text above the figure.
    """
    from matplotlib.figure import Figure

    is_accuracy = metric == "accuracy"
    unit = 100 if is_accuracy else 1
    figure = Figure(figsize=(7, 4))
    axes = figure.add_axes((0.1, 0.12, 0.88, 0.8))
    for part, label in {"test": "test", "val": "validation"}.items():
        evaluated = [r for r in records if r.get(f"{part}_{metric}") is not None]
        values = [unit * r[f"{part}_{metric}"] for r in evaluated]
        marker = "o" if len(values) <= 25 else None
        style: dict[str, Any] = {"ls": "-" if part == "test" else "--", "color": COLOURS[part]}
        axes.plot(
            [r["round"] for r in evaluated], values, marker=marker, ms=3, lw=1.6, label=label, clip_on=False, **style
        )
    axes.set(xlabel="round", ylabel="accuracy (%)" if is_accuracy else "loss", xlim=(0, records[-1]["round"]))
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    majority = [100 * r["test_majority_accuracy"] for r in records if r.get("test_majority_accuracy") is not None]
    if is_accuracy and majority:
        axes.axhline(majority[-1], color=MAJORITY, lw=1, ls=":", label="always the largest class")
    low, high = axes.get_ylim()
    axes.set_ylim((max(0, low), min(100.5, high)) if is_accuracy else (low, high))
    axes.legend(frameon=False, loc="best", fontsize=9)
    return figure


MAX_NAMES = 30
"""Most classes that are named."""

MAX_BUBBLES = 600
"""Most clients times classes that are drawn as bubbles; above that, as cells."""


def counts_of_clients(arrays: Arrays, partition: Partition) -> np.ndarray:
    """Returns the number of labels by client and class, [N, C], without rows that are held out of the whole set."""
    parts = [rows for rows in partition if len(rows) == len(partition.train)]
    clients = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
    return np.array([np.bincount(arrays.y[rows].ravel(), minlength=len(arrays.class_names)) for rows in clients])


def clients(arrays: Arrays, partition: Partition, title: str) -> Figure:
    """Returns a figure of the number of labels by client and class.

    Args:
        arrays: the data set.
        partition: rows of every client.
        title: text above the figure.
    """
    from matplotlib.figure import Figure

    held, names = counts_of_clients(arrays, partition), arrays.class_names
    size = (float(np.clip(0.13 * len(held), 5.5, 14)) + 2, float(np.clip(0.3 * len(names), 2.2, 9)) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    classes_of_clients(axes, held, int(held.max()))
    if len(names) <= MAX_NAMES:
        axes.set_yticks(range(len(names)), [plain(name, 26) for name in names])
    axes.set(xlabel="client", ylabel="class")
    figure.suptitle(plain(title, 120), x=0.01, ha="left", size=11)
    return figure


def classes_of_clients(axes: Axes, counts: np.ndarray, largest: int) -> None:
    """Draws bubbles whose area is the number of rows by client and class, or cells whose darkness is.

    Args:
        axes: where to draw.
        counts: int [N, C].
        largest: number of rows with the largest bubble.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    if counts.size <= MAX_BUBBLES:
        clients, classes = np.nonzero(counts)
        area = 150 * counts[clients, classes] / largest * min(1.0, 200 / counts.size)
        axes.scatter(clients, classes, area, color="#0072b2", alpha=0.75, lw=0)
        axes.set_xlim(-0.8, len(counts) - 0.2)
        axes.set_ylim(counts.shape[1] - 0.3, -0.7)
    else:
        shown = np.where(counts > 0, counts, np.nan).T
        axes.imshow(shown, aspect="auto", cmap="Blues", norm=LogNorm(0.5, max(largest, 2)), interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def plain(text: str, width: int = 60) -> str:
    """Returns a text on one line, of at most `width` characters, of which Matplotlib reads nothing as mathematics."""
    line = one_line(text)
    line = line if len(line) <= width else line[: width - 1].rstrip() + "…"
    return line.replace("\\$", "$").replace("$", "\\$")


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


def weights(records: Sequence[Record], title: str) -> Figure:
    """Returns a figure of every client's weight times cohort size in every round; 1 is an equal weight.

    Clients are sorted by size, which is shown beside them. Clients that never took part are left out. A client is grey
    in rounds from which it is absent.

    Args:
        records: one per round.
        title: text above the figure.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ids, sizes, shares = weight_shares(records)
    limit = _colour_limit(shares)
    rows_inches = float(np.clip(0.2 * len(ids), 1.2, 7.5))
    height = rows_inches + 1.3
    figure = Figure(figsize=(8.5, height))
    # finding the margins takes Matplotlib's layout engines a third of the time of a picture
    numbers = 0.4 + 0.06 * len(str(ids.max()))
    margins = {"left": numbers / 8.5, "right": 0.9, "bottom": 0.6 / height, "top": 1 - 0.4 / height, "wspace": 0.12}
    rows, bars, colours = figure.add_gridspec(1, 3, width_ratios=(30, 6, 1), **margins)
    left = figure.add_subplot(rows)
    right = figure.add_subplot(bars, sharey=left)
    image = left.imshow(
        np.clip(shares, 1 / limit, limit),
        aspect="auto",
        extent=(0.5, len(records) + 0.5, len(ids) - 0.5, -0.5),
        cmap="RdBu_r",
        norm=LogNorm(1 / limit, limit),
        interpolation="nearest",
    )
    left.set(xlabel="round (1 is an equal weight, grey is absent)", ylabel="client, smallest first", facecolor="0.84")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    every = int(np.ceil(LABEL_INCHES * len(ids) / rows_inches))
    left.set_yticks(range(0, len(ids), every), [str(k) for k in ids[::every]], fontsize=8)
    right.stairs(sizes, np.arange(len(ids) + 1) - 0.5, orientation="horizontal", fill=True, color="0.6")
    right.set_xlabel("training rows")
    right.locator_params(axis="x", nbins=3)
    right.tick_params(axis="y", length=0, labelleft=False)
    right.spines[["top", "right"]].set_visible(False)
    bar = figure.colorbar(image, cax=figure.add_subplot(colours), extend="both", ticks=_ticks(limit), format="%g")
    bar.set_label("weight x cohort size")
    bar.minorticks_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _colour_limit(shares: np.ndarray) -> float:
    """Returns c such that 1/c to c holds 98 % of the positive shares, at least 1.25."""
    positive = shares[np.isfinite(shares) & (shares > 0)]
    if not positive.size:
        return 1.25
    return float(max(1.25, np.exp(np.quantile(np.abs(np.log(positive)), 0.98))))


def _ticks(limit: float) -> list[float]:
    """Returns at most nine round numbers within 1/limit and limit."""
    steps = (1.0, 1.1, 1.2, 1.5, 2, 3, 5) if limit < 2 else (1.0, 2, 5) if limit < 20 else (1.0, 3)
    values = sorted({m * 10.0**e for e in range(-6, 7) for m in steps} | {1 / m for m in steps if limit < 2})
    return [v for v in values if 1 / limit <= v <= limit]
