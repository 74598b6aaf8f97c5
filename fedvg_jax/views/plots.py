"""Pictures of a run: accuracy (or loss) over rounds, and every client's weight in every round."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.runs.history import Record


def write(folder: Path, records: Sequence[Record], num_clients: int) -> None:
    """`accuracy.png`, or `loss.png` of a task without accuracy, and `weights.png` in a run's folder."""
    with drawing():
        if any(r.get("test_accuracy") is not None for r in records):
            _save(accuracy(records), folder / "accuracy.png")
        elif any(r.get("test_loss") is not None for r in records):
            _save(loss(records), folder / "loss.png")
        if records:
            _save(weights(records, num_clients), folder / "weights.png")


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib without a display, and without its remarks on fonts, layouts and its own folders."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib

        matplotlib.use("Agg")
        yield


def accuracy(records: Sequence[Record]):
    """Test and validation accuracy, percent, over rounds."""
    figure, axes = _curves(records, "accuracy", 100)
    majority = [r["test_majority_accuracy"] for r in records if r.get("test_majority_accuracy") is not None]
    if majority:
        axes.axhline(100 * majority[-1], color="0.6", lw=1, label="largest class")
    axes.set(ylabel="accuracy (%)", ylim=(0, 100))
    axes.legend(frameon=False, loc="center right")
    return figure


def loss(records: Sequence[Record]):
    """Test and validation loss over rounds."""
    figure, axes = _curves(records, "loss", 1)
    axes.set(ylabel="loss")
    axes.legend(frameon=False)
    return figure


def _curves(records: Sequence[Record], metric: str, unit: float):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for part, style in {"test": "-", "val": "--"}.items():
        known = [r for r in records if r.get(f"{part}_{metric}") is not None]
        values = [unit * r[f"{part}_{metric}"] for r in known]
        axes.plot([r["round"] for r in known], values, style, label={"val": "validation"}.get(part, part))
    axes.set(xlabel="round", xlim=(0, records[-1]["round"]))
    axes.grid(alpha=0.3)
    return figure, axes


def weights(records: Sequence[Record], num_clients: int):
    """Aggregation weight times cohort size, clients by rounds: 1 is an equal share; grey where a client sat out."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    share = np.full((num_clients, len(records)), np.nan)
    for column, record in enumerate(records):
        values = np.array([np.nan if w is None else w for w in record["weights"]])
        share[record["clients"], column] = values * len(values)
    figure = Figure(figsize=(8, 1.5 + min(8, 0.16 * num_clients)), layout="constrained")
    axes = figure.subplots()
    extent = (0.5, len(records) + 0.5, num_clients - 0.5, -0.5)
    shown = np.clip(share, 0.1, 10)
    image = axes.imshow(
        shown, aspect="auto", extent=extent, cmap="RdBu_r", norm=LogNorm(0.1, 10), interpolation="nearest"
    )
    axes.set(xlabel="round", ylabel="client", facecolor="0.8")
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, label="weight x cohort size", ticks=[0.1, 0.3, 1, 3, 10], format="%g")
    return figure


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
