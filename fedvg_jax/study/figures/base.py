"""What the figures share: sizes, colours, the legend, and files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.config import method_title
from fedvg_jax.host.errors import one_line

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
"""Okabe and Ito's colours, which people without full colour vision tell apart; yellow is too light for lines."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Shapes that keep the methods apart in grey."""

DASHES = ("-", "-.", ":")
"""Of the first eight methods, the next eight, and so on; "--" is for X where there is X+fedvg."""

GREY = "0.45"

LABEL_WIDTH, TITLE_WIDTH = 34, 90
"""Characters of a line of a label, and of a title of a figure."""

WIDTH, PANEL_HEIGHT = 7.2, 2.9
"""Inches of a figure, and of a row of panels."""

FONT = 9.0
"""Points."""


class Drawing(NamedTuple):
    """A figure with its name, the stem of its files, and its title."""

    name: str
    title: str
    figure: Figure


def base_of(method: str) -> str:
    """Returns the name of the method that a combination with FedVG adds FedVG's weights to, with the same settings.

    >>> base_of("fedprox+fedvg, mu 0.1"), base_of("fedvg")
    ('fedprox, mu 0.1', 'fedvg')
    """
    name, comma, details = method.partition(", ")
    return f"{name.removesuffix('+fedvg')}{comma}{details}"


def line_styles(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns Matplotlib's options of every method's line: X and X+fedvg share a colour, X dashed and X+fedvg solid.

    >>> styles = line_styles(["fedprox", "fedprox+fedvg", "fedvg"])
    >>> [styles[method]["ls"] for method in styles]
    ['--', '-', '-']
    >>> styles["fedprox"]["color"] == styles["fedprox+fedvg"]["color"] != styles["fedvg"]["color"]
    True
    """
    bases = list(dict.fromkeys(map(base_of, methods)))
    has_pair = {base_of(method) for method in methods if base_of(method) != method}
    styles = {}
    for method in methods:
        cycle, index = divmod(bases.index(base_of(method)), len(COLOURS))
        dashes = "--" if method in has_pair else DASHES[cycle % len(DASHES)]
        look = {"color": COLOURS[index], "marker": MARKERS[index], "ls": dashes}
        styles[method] = look | {"label": plain(method_title(method))}
    return styles


def plain(text: str, width: int = LABEL_WIDTH) -> str:
    """Returns a text in lines of about `width` characters."""
    shown = textwrap.fill(one_line(text), width, break_long_words=False, break_on_hyphens=False)
    return f" {shown}" if shown[:1] == "_" else shown  # a label that begins with _ is in no legend


def drawing() -> AbstractContextManager[None]:
    """Returns a context in which Matplotlib draws with the sizes of reports, and reads no text as mathematics."""
    import matplotlib

    sizes: Any = {name: FONT for name in ("font.size", "axes.labelsize", "axes.titlesize")}
    sizes |= {name: FONT - 1 for name in ("xtick.labelsize", "ytick.labelsize", "legend.fontsize")}
    sizes |= {"lines.linewidth": 1.6, "pdf.fonttype": 42, "text.parse_math": False}
    return matplotlib.rc_context(sizes)


def grid(count: int, height: float = PANEL_HEIGHT, **options: Any) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` panels, two in a row.

    Args:
        count: number of panels.
        height: inches of a panel.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    rows = -(-count // 2)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, min(count, 2), squeeze=False, **options).ravel()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, list(axes[:count])


def whole_numbers(axis: Axis) -> None:
    """Labels an axis of rounds at about five whole numbers, at one where there is only one round."""
    from matplotlib.ticker import MaxNLocator

    # two ticks would be fractions
    axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def heatmap(
    axes: Axes, values: np.ndarray, limits: tuple[float, float], colours: str, **options: Any
) -> AxesImage:
    """Draws a square for every value, on a logarithmic scale of colours; nan is left out."""
    low, high = limits
    options |= {"cmap": colours, "norm": "log", "vmin": low, "vmax": high}
    return axes.imshow(values, aspect="auto", interpolation="nearest", **options)


def add_colour_bar(image: AxesImage, ticks: Mapping[Any, str], **options: Any) -> None:
    """Adds the key of a heatmap, which names the values of `ticks` only."""
    figure: Any = image.figure
    bar = figure.colorbar(image, **options)
    bar.set_ticks([*ticks], labels=[*ticks.values()])
    bar.minorticks_off()


def clean(axes: Axes, along: str = "y") -> None:
    """Removes two sides of the frame and draws a pale grid along one axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=along, color="0.9", linewidth=0.6)  # pyright: ignore[reportArgumentType]
    axes.set_axisbelow(True)


def add_legend(figure: Figure) -> None:
    """Names every label of the panels once, below them, where the figure grows by the height of the names."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    if not handles:
        return
    lines = max(label.count("\n") + 1 for label in handles) * -(-len(handles) // 2)
    figure.set_figheight(figure.get_figheight() + 1.5 * FONT / 72 * lines)
    options: dict[str, Any] = {"ncols": 2, "handlelength": 3, "frameon": False}
    figure.legend([*handles.values()], [*handles], loc="outside lower center", **options)


def save(drawn: Drawing, folder: Path, suffixes: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Writes a figure; the same figure gives the same bytes."""
    title = plain(drawn.title, TITLE_WIDTH)
    drawn.figure.suptitle(title, x=0.01, ha="left", fontsize=FONT + 1)
    add_legend(drawn.figure)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{drawn.name}.{suffix}" for suffix in suffixes]
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}
    for path in paths:
        drawn.figure.savefig(path, dpi=200, metadata=metadata[path.suffix])
        # keeps the layout of the first file, which takes half of the time
        drawn.figure.set_layout_engine("none")
    return paths
