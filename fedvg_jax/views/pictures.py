"""Pictures of a data set: a contact sheet of its images, and the classes of every client."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.core.types import one_line
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.views import labels, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"train": "#3b6ea8", "val": "#e0a030", "test": "#b9c4d0"}
"""Part of a client's rows -> colour."""

_INK = "#2b2b33"
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
    longest = max(len(_short(name)) for name in arrays.class_names)
    left, right, top, bottom = (0.4 + 0.085 * longest if in_rows else 0.2), (0.8 if in_rows else 0.2), 0.55, 0.2
    tall = inches * height / width
    size = (left + inches + right, top + tall + bottom)
    figure = Figure(figsize=size)
    axes = figure.add_axes((left / size[0], bottom / size[1], inches / size[0], tall / size[1]))
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if width < 1200 else "antialiased")
    axes.set_axis_off()
    shape = " x ".join(map(str, arrays.x.shape[1:]))
    subtitle = f"{len(arrays.y):,} images {shape}, {len(counts)} classes"
    figure.text(0.2 / size[0], 1 - 0.33 / size[1], _plain(arrays.name), size=12, weight="bold", color=_INK, va="center")
    figure.text(1 - 0.2 / size[0], 1 - 0.33 / size[1], subtitle, size=9, color="0.4", va="center", ha="right")
    pitch = height / len(tiles)
    for row, (name, count) in enumerate(zip(arrays.class_names, counts, strict=True)) if in_rows else ():
        middle = (row + 0.5) * pitch
        axes.text(-0.15 * pitch, middle, _short(name), ha="right", va="center", size=9, color=_INK)
        axes.text(width + 0.12 * pitch, middle, f"{count:,}", ha="left", va="center", size=8, color="0.45")
    return figure


def counts_by_part(arrays: Arrays, partition: Partition) -> dict[str, np.ndarray]:
    """Returns part -> number of labels by client and class, [N, C]; parts held out of the whole set are left out."""
    parts = {name: rows for name, rows in partition._asdict().items() if len(rows) == len(partition.train)}
    return {name: class_counts(rows, arrays.y, len(arrays.class_names)) for name, rows in parts.items()}


def clients(arrays: Arrays, partition: Partition, title: str) -> Figure:
    """Returns a figure of classes by clients, with bars for the sums.

    The number of labels is the area of a bubble, or the colour of a cell where there are many classes or clients.

    Args:
        arrays: the data set.
        partition: rows of every client.
        title: text above the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_classes, parts, unit = len(arrays.class_names), counts_by_part(arrays, partition), labels.unit(arrays)
    held = np.sum(list(parts.values()), axis=0)
    num_clients, bubbles = len(held), num_classes <= _MAX_ROWS and len(held) <= 120
    wide = float(np.clip(0.13 * num_clients, 5.5, 14))
    tall = 0.34 * num_classes if bubbles else float(np.clip(0.035 * num_classes, 3, 8))
    tall = max(tall, 2.2)
    figure = Figure(figsize=(wide + 3.3, tall + 2.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(wide, 1.1), height_ratios=(1.2, tall), wspace=0.02, hspace=0.03)
    middle = figure.add_subplot(grid[1, 0])
    _bubbles(figure, middle, held, wide / num_clients) if bubbles else _heat_map(figure, middle, held, unit)
    sizes, totals = figure.add_subplot(grid[0, 0], sharex=middle), figure.add_subplot(grid[1, 1], sharey=middle)
    _bars(sizes, {name: counts.sum(1) for name, counts in parts.items()}, "bar", "bottom")
    _bars(totals, {name: counts.sum(0) for name, counts in parts.items()}, "barh", "left")
    sizes.set_ylabel(unit, size=8, color="0.4")
    totals.set_xlabel(unit, size=8, color="0.4")
    middle.set(xlim=(-0.7, num_clients - 0.3), ylim=(num_classes - 0.4, -0.6))
    middle.set_xlabel("client", color=_INK)
    middle.xaxis.set_major_locator(MaxNLocator(integer=True))
    if bubbles:
        middle.set_yticks(range(num_classes), [_short(name) for name in arrays.class_names], size=9)
    else:
        middle.set_ylabel("class", color=_INK)
    sizes.tick_params(axis="x", labelbottom=False, length=0)
    totals.tick_params(axis="y", labelleft=False, length=0)
    figure.suptitle(_plain(title), x=0.01, ha="left", size=11, weight="bold", color=_INK)
    handles, _ = sizes.get_legend_handles_labels()
    names = {"train": "training", "val": "validation", "test": "test"}
    corner = figure.add_subplot(grid[0, 1])
    corner.set_axis_off()
    corner.legend(handles, [names[name] for name in parts], loc="center", frameon=False, fontsize=8, handlelength=1)
    return figure


def _bubbles(figure, axes, held: np.ndarray, pitch: float) -> None:
    """Draws bubbles with areas in proportion to the counts, and a key; the smallest are enlarged to be visible.

    Args:
        figure: for the key.
        axes: for the bubbles.
        held: number of labels by client and class, [N, C].
        pitch: inches between two clients.
    """
    client, label = np.nonzero(held)
    largest = (72 * min(2.2 * pitch, 0.34)) ** 2
    axes.scatter(client, label, s=_areas(held[client, label], held.max(), largest), c="#3b6ea8", alpha=0.75, lw=0)
    steps = [n for n in (m * 10**e for e in range(7) for m in (1, 5)) if n <= held.max()][-4:]
    keys = [
        axes.scatter([], [], s=area, c="#3b6ea8", alpha=0.75, lw=0, label=f"{n:,}")
        for n, area in zip(steps, _areas(np.array(steps), held.max(), largest), strict=True)
    ]
    figure.legend(
        handles=keys,
        loc="upper right",
        ncols=len(keys),
        frameon=False,
        fontsize=8,
        columnspacing=1.2,
        handletextpad=0.8,
    )
    axes.set_axisbelow(True)
    axes.set_yticks(range(held.shape[1]))
    axes.grid(color="0.92", lw=0.6)
    _bare(axes)


def _areas(count: np.ndarray, most: int, largest: float) -> np.ndarray:
    """Returns areas of bubbles in square points."""
    return np.maximum(largest * count / most, 1.6)


def _heat_map(figure, axes, held: np.ndarray, unit: str) -> None:
    """Draws a cell per client and class, on a logarithmic scale; white where the count is 0."""
    from matplotlib.colors import LogNorm

    shown = np.where(held > 0, held, np.nan).T
    image = axes.imshow(
        shown, aspect="auto", cmap="Blues", norm=LogNorm(0.5, max(held.max(), 2)), interpolation="nearest"
    )
    axes.set_facecolor("white")
    figure.colorbar(image, ax=axes, location="bottom", label=unit, shrink=0.4, aspect=40, pad=0.02, format="%g")
    _bare(axes)


def _bars(axes, values: dict[str, np.ndarray], kind: str, base: str) -> None:
    """Draws stacked bars.

    Args:
        axes: where to draw.
        values: part -> heights.
        kind: "bar" or "barh".
        base: name of the argument with the start of a bar, "bottom" or "left".
    """
    below = np.zeros(len(next(iter(values.values()))))
    thickness = 0.8 if len(below) <= 120 else 1.0  # gaps of less than a pixel would shimmer
    for name, value in values.items():
        getattr(axes, kind)(range(len(value)), value, thickness, **{base: below}, color=PARTS[name], label=name, lw=0)
        below = below + value
    axes.locator_params(axis="y" if kind == "bar" else "x", nbins=3)
    (axes.yaxis if kind == "bar" else axes.xaxis).set_major_formatter("{x:,.0f}")
    _bare(axes)


def _bare(axes) -> None:
    """Removes the frame and mutes the ticks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(colors="0.35", labelsize=8, length=2)


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


def _short(name: str, width: int = 26) -> str:
    return _plain(name if len(name) <= width else name[: width - 1].rstrip() + "…")


def _plain(text: str) -> str:
    """Returns `text` on one line, escaped so that Matplotlib reads nothing as mathematics."""
    return one_line(text).replace("\\$", "$").replace("$", "\\$")
