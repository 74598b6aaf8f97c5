"""The picture of a loss plane: contours of the loss, the clients' models, and where weightings take the round."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.runs.loss_plane import LossPlane, table
from fedvg_jax.views.plots import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"FedAvg": ("#d55e00", "s"), "uniform": ("#ffffff", "o"), "FedVG": ("#f0e442", "^")}
"""Weighting -> colour and marker of its new global model."""

NUM_LEVELS = 14


def write(folder: Path, plane: LossPlane, title: str) -> list[Path]:
    """Writes `loss_plane.png`, `loss_plane.pdf` and `loss_plane.csv`, and returns their paths.

    Args:
        folder: run folder.
        plane: what to draw.
        title: text above the figure.
    """
    paths = [folder / f"loss_plane.{suffix}" for suffix in ("png", "pdf", "csv")]
    with drawing():
        figure = draw(plane, title)
        for path in paths[:2]:
            figure.savefig(path, dpi=150)
    rows = table(plane)
    with paths[2].open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return paths


def draw(plane: LossPlane, title: str, part: str = "test") -> Figure:
    """Returns the figure. Models of the round are drawn on the plane of the updates only; random planes miss them.

    Args:
        plane: what to draw.
        title: text above the figure.
        part: whose loss, test or val.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 5.2), layout="constrained")
    losses = np.log10(np.maximum(plane.losses[part], 1e-12))
    levels = np.quantile(losses, np.linspace(0, 1, NUM_LEVELS))  # as many grid points between any two of them
    filled = axes.contourf(*plane.axes, losses, levels=np.unique(levels), cmap="viridis")
    bar = figure.colorbar(filled, ax=axes, label=f"{part} loss", format=lambda level, _: f"{10**level:.3g}")
    bar.ax.tick_params(labelsize=8)
    if plane.directions == "updates":
        _draw_clients(axes, plane)
        _mark_rules(axes, plane)
    axes.plot(0, 0, "k+", ms=10, mew=2)
    unit = "L2 distance" if plane.directions == "updates" else "norm of the model's filters"
    axes.set(xlabel=f"first direction ({unit})", ylabel=f"second direction ({unit})")
    axes.set_title(title, fontsize=9, loc="left")
    return figure


def _draw_clients(axes: Axes, plane: LossPlane) -> None:
    for client, (x, y) in zip(plane.clients, plane.points, strict=True):
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": "white", "lw": 0.9})
        axes.annotate(f"{client}", (x, y), (3, 3), textcoords="offset points", color="white", fontsize=8)


def _mark_rules(axes: Axes, plane: LossPlane) -> None:
    """Marks the new global models, which lie close together, and explains the marks below the plane."""
    for name, (x, y) in plane.rules.items():
        colour, marker = MARKS[name]
        axes.plot(x, y, marker, color=colour, mec="black", ms=8, label=f"after {name}", ls="none")
    axes.plot([], [], "k+", ms=9, mew=2, label="before the round")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, fontsize=8, frameon=False)
