"""Pictures of a data set: a contact sheet of its images, and the classes of every client."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.views import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_ROWS = 30
"""Most classes that get a row each, with their names."""


def write(folder: Path, arrays: Arrays, partition: Partition, title: str) -> list[Path]:
    """Draws `clients.png`, and `images.png` where the rows are images.

    Args:
        folder: created if it does not exist.
        arrays: the data set.
        partition: rows of every client.
        title: text above `clients.png`.

    Returns:
        The paths of the pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with plots.drawing():
        drawn = {"images.png": contact_sheet(arrays)} if user_data.is_images(arrays) else {}
        drawn["clients.png"] = clients(arrays, partition, title)
        for name, figure in drawn.items():
            figure.savefig(folder / name, dpi=150, facecolor="white")
    return [folder / name for name in drawn]


def class_counts(rows: Sequence[np.ndarray], y: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns the number of rows by client and class, or of characters of sequences, [N, C] int.

    Args:
        rows: of every client, [n_k] int each.
        y: labels, [T] or [T, L] int.
        num_classes: C.

    >>> class_counts([np.array([0, 1]), np.array([2])], np.array([1, 1, 0]), 2).tolist()
    [[0, 2], [1, 0]]
    """
    return np.array([np.bincount(y[mine].ravel(), minlength=num_classes) for mine in rows]).reshape(
        len(rows), num_classes
    )


def contact_sheet(arrays: Arrays) -> Figure:
    """Returns a figure of images of every class, evenly spaced over its rows; one image each of many classes."""
    from matplotlib.figure import Figure

    counts = np.bincount(arrays.y, minlength=len(arrays.class_names))
    in_rows = len(counts) <= _MAX_ROWS
    columns = 14 if in_rows else 20
    tiles = [_spread(arrays, c, columns if in_rows else 1) for c in range(len(counts))]
    if not in_rows:
        tiles = [list(itertools.chain(*tiles[i : i + columns])) for i in range(0, len(tiles), columns)]
    sheet = _mosaic(tiles, columns, arrays.x.shape[1:])
    height, width = sheet.shape[:2]
    inches = 0.62 * columns
    figure = Figure(figsize=(inches + 2, inches * height / width + 0.7), layout="constrained")
    axes = figure.subplots()
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if width < 1200 else "antialiased")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([])
    names = [f"{plots.plain(name, 26)}  {n:,}" for name, n in zip(arrays.class_names, counts, strict=True)]
    middles = (np.arange(len(tiles)) + 0.5) * height / len(tiles)
    axes.set_yticks(middles if in_rows else [], names if in_rows else [], size=9)
    shape = " x ".join(map(str, arrays.x.shape[1:]))
    title = f"{plots.plain(arrays.name)}: {len(arrays.y):,} images {shape}, {len(counts)} classes"
    figure.suptitle(title, x=0.01, ha="left", size=11)
    return figure


def counts_by_part(arrays: Arrays, partition: Partition) -> dict[str, np.ndarray]:
    """Returns part -> number of labels by client and class, [N, C]; parts held out of the whole set are left out."""
    parts = {name: rows for name, rows in partition._asdict().items() if len(rows) == len(partition.train)}
    return {name: class_counts(rows, arrays.y, len(arrays.class_names)) for name, rows in parts.items()}


def clients(arrays: Arrays, partition: Partition, title: str) -> Figure:
    """Returns a figure of the number of labels by client and class.

    Args:
        arrays: the data set.
        partition: rows of every client.
        title: text above the figure.
    """
    from matplotlib.figure import Figure

    held, names = np.sum(list(counts_by_part(arrays, partition).values()), axis=0), arrays.class_names
    size = (float(np.clip(0.13 * len(held), 5.5, 14)) + 2, float(np.clip(0.3 * len(names), 2.2, 9)) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    plots.classes_of_clients(axes, held, int(held.max()))
    if len(names) <= _MAX_ROWS:
        axes.set_yticks(range(len(names)), [plots.plain(name, 26) for name in names])
    axes.set(xlabel="client", ylabel="class")
    figure.suptitle(plots.plain(title, 120), x=0.01, ha="left", size=11)
    return figure


def _spread(arrays: Arrays, label: int, num: int) -> list[np.ndarray]:
    """Returns up to `num` images of one class, evenly spaced over its rows."""
    rows = np.flatnonzero(arrays.y == label)
    return (
        [arrays.x[row] for row in rows[np.unique(np.linspace(0, len(rows) - 1, num).astype(int))]] if len(rows) else []
    )


def _mosaic(tiles: list[list[np.ndarray]], columns: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns rows of images on white; large images are subsampled, because a tile is shown at about 100 pixels.

    Images of two channels show the first, those of more than three the first three.
    """
    channels = 3 if shape[2] >= 3 else 1
    step = max(1, min(shape[:2]) // 96)
    height, width, gap = -(-shape[0] // step), -(-shape[1] // step), max(1, shape[1] // step // 14)
    sheet = np.full(((height + gap) * len(tiles) - gap, (width + gap) * columns - gap, 3), 255, np.uint8)
    for i, row in enumerate(tiles):
        for j, tile in enumerate(row):
            top, left = i * (height + gap), j * (width + gap)
            sheet[top : top + height, left : left + width] = tile[::step, ::step, :channels]
    return sheet
