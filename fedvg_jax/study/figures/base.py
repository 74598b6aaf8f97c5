"""What the figures share: sizes, colours, the legend, and files."""

from __future__ import annotations

import contextlib
import logging
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.config import method_title
from fedvg_jax.host import files
from fedvg_jax.host.errors import one_line
from fedvg_jax.study.markup import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Dashes = str | tuple[float, tuple[float, ...]]
"""Matplotlib's line style: a name, or an offset and the lengths of dashes and gaps in line widths."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
"""Okabe and Ito's colours, which people without full colour vision tell apart; yellow is too light for lines."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Shapes that keep the methods apart in grey."""

DASHES: tuple[tuple[Dashes, Dashes], ...] = (
    ("-", "--"),
    ("-.", ":"),
    ((0, (7, 1.5, 1, 1.5, 1, 1.5)), (0, (9, 3))),
)
"""Dashes of X+fedvg and of X, for the first eight methods, the next eight and so on; a number is in line widths."""

MARKER_SHIFT = 3
"""Steps by which markers are shifted against colours with every eight methods."""

GREY = "0.45"

LABEL_WIDTH = 34
"""Characters of a line of a label."""


WIDTH, PANEL_HEIGHT = 7.2, 2.9
"""Inches of a figure, and of a row of panels."""

PANELS_PER_ROW = 2

FONT = 9.0
"""Points."""


class Drawing(NamedTuple):
    """A figure with the numbers that it shows."""

    name: str
    """Stem of its files."""
    title: str
    figure: Figure
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


def numbered(name: str, index: int) -> str:
    """Returns the name of a figure's files; the second figure of a name is NAME-2."""
    return name if index == 0 else f"{name}-{index + 1}"


def base_of(method: str) -> str:
    """Returns the name of the method that a combination with FedVG adds FedVG's weights to, with the same settings.

    >>> base_of("fedprox+fedvg, mu 0.1"), base_of("fedvg")
    ('fedprox, mu 0.1', 'fedvg')
    """
    name, comma, details = method.partition(", ")
    return f"{name.removesuffix('+fedvg')}{comma}{details}"


def line_styles(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns Matplotlib's options of every method's line: X and X+fedvg share a colour, X dashed and X+fedvg solid.

    Up to 24 methods differ without the colour, too: with every eight colours, dashes and markers change.

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
        look = {"color": COLOURS[index], "ls": DASHES[cycle % len(DASHES)][method in has_pair]}
        look["marker"] = MARKERS[(index + MARKER_SHIFT * cycle) % len(MARKERS)]
        styles[method] = {**look, "label": plain(method_title(method))}
    return styles


def plain(text: str, width: int = LABEL_WIDTH) -> str:
    """Returns a text in lines of at most `width` characters, in which Matplotlib reads nothing as mathematics."""
    shown = "\n".join(textwrap.wrap(one_line(text), width)).replace("\\$", "$").replace("$", "\\$")
    return f" {shown}" if shown[:1] == "_" else shown  # a label that begins with _ is in no legend


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Uses Matplotlib without a display or its warnings about fonts and layouts."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib

        matplotlib.use("Agg")
        chosen: Any = {name: FONT for name in ("font.size", "axes.labelsize", "axes.titlesize")}
        chosen |= {name: FONT - 1 for name in ("xtick.labelsize", "ytick.labelsize", "legend.fontsize")}
        chosen |= {"lines.linewidth": 1.6, "pdf.fonttype": 42}
        with matplotlib.rc_context(chosen):
            yield


def grid(count: int, height: float = 1.0, width: float = WIDTH, **options: Any) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` panels in rows.

    Args:
        count: number of panels.
        height: factor of the height of a panel.
        width: inches.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    columns = min(count, PANELS_PER_ROW)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, PANEL_HEIGHT * height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, list(axes[:count])


def whole_numbers(axis: Axis) -> None:
    """Labels an axis of rounds at about five whole numbers, at one where there is only one round."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))  # two ticks would be fractions


def label_rows(axes: Sequence[Axes], text: str) -> None:
    """Labels the vertical axis of the first panel of every row."""
    for panel in axes:
        if (place := panel.get_subplotspec()) and place.is_first_col():
            panel.set_ylabel(text)


def clean(axes: Axes, along: str = "y") -> None:
    """Removes two sides of the frame and draws a pale grid along one axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=along, color="0.9", linewidth=0.6)  # pyright: ignore[reportArgumentType]
    axes.set_axisbelow(True)


def add_legend(figure: Figure) -> None:
    """Names every label of the panels once, below them, where the figure grows by the height of the names."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        inches, lines = FONT / 72, [line for label in handles for line in label.split("\n")]
        columns = max(1, int(WIDTH / (0.55 * inches * (max(map(len, lines)) + 9))))  # 9 for the line
        most = max(label.count("\n") + 1 for label in handles)
        figure.set_figheight(figure.get_figheight() + (0.2 + 1.2 * most) * inches * -(-len(handles) // columns))
        options: dict[str, Any] = {"ncols": columns, "handlelength": 3, "frameon": False}
        figure.legend([*handles.values()], [*handles], loc="outside lower center", **options)


def save(drawn: Drawing, folder: Path, suffixes: Sequence[str] = ("png", "pdf", "csv")) -> list[Path]:
    """Writes a figure as PNG and PDF, and its numbers as CSV; the same figure gives the same bytes."""
    title = plain(drawn.title, int(12.5 * drawn.figure.get_figwidth()))
    drawn.figure.suptitle(title, x=0.01, ha="left", fontsize=FONT + 1)
    add_legend(drawn.figure)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{drawn.name}.{suffix}" for suffix in suffixes]
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None, "Creator": None}}
    for suffix, path in zip(suffixes, paths, strict=True):
        if suffix == "csv":
            import pandas

            files.replace(path, csv_text(pandas.DataFrame([*drawn.rows], columns=[*drawn.columns])))
        else:
            drawn.figure.savefig(path, dpi=200, metadata=metadata[suffix])
            drawn.figure.set_layout_engine("none")  # keeps the layout of the first file, which takes half of the time
    return paths
