"""What the figures share: sizes, colours, the legend, and files."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.config import method_title
from fedvg_jax.host import files
from fedvg_jax.host.errors import one_line
from fedvg_jax.study.groups import Frame
from fedvg_jax.study.markup import csv_text
from fedvg_jax.study.places import Condition, condition_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_LOG = logging.getLogger(__name__)

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

INCH = FONT / 72
"""Inches of the font's size."""


class Drawing(NamedTuple):
    """A figure with the numbers that it shows."""

    name: str
    """Stem of its files."""
    title: str
    figure: Figure
    numbers: Frame


def numbered(name: str, index: int) -> str:
    """Returns the name of a figure's files; the second figure of a name is NAME-2."""
    return name if index == 0 else f"{name}-{index + 1}"


def titled(text: str, condition: Condition) -> str:
    """Returns the title of a figure with its settings, if it has some."""
    return ", ".join(filter(None, (text, condition_text(condition))))


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
    """Returns a text in lines of about `width` characters, in which Matplotlib reads nothing as mathematics.

    No word is broken. Characters that no installed font has are spelled; see `drawing`.
    """
    spelled = one_line(text)
    for word, spelling in _SPELLED.get().items():
        spelled = spelled.replace(word, spelling)
    lines = textwrap.wrap(spelled, width, break_long_words=False, break_on_hyphens=False)
    shown = "\n".join(lines).replace("\\$", "$").replace("$", "\\$")
    return f" {shown}" if shown[:1] == "_" else shown  # a label that begins with _ is in no legend


_SPELLED: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("spelled", default={})  # noqa: B039
"""Word with letters that no installed font has -> what figures show in its place: a number and its code points."""

DEFAULT_FONT = "DejaVu Sans"
"""Matplotlib's own, which it always has."""

BOXES = "Last Resort"
"""Matplotlib's font of boxes, which names a block of letters in each."""


@contextlib.contextmanager
def drawing(names: Sequence[str] = ()) -> Iterator[None]:
    """Draws with sizes, and fonts that have the letters of the names, within the context; it changes no setting else.

    Logs a line where no font has some letters.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import matplotlib

        fonts, letters = _fonts(names)
        spelled = _spellings(letters, names)
        if spelled:
            listed = "; ".join(f"{spelling} is {word}" for word, spelling in spelled.items())
            _LOG.warning("no installed font has some letters of the names in figures: %s", listed)
        chosen: Any = {name: FONT for name in ("font.size", "axes.labelsize", "axes.titlesize")}
        chosen |= {
            name: FONT - 1 for name in ("xtick.labelsize", "ytick.labelsize", "legend.fontsize")
        }
        chosen |= {"lines.linewidth": 1.6, "pdf.fonttype": 42, "font.family": fonts}
        token = _SPELLED.set(spelled)
        try:
            with matplotlib.rc_context(chosen):
                yield
        finally:
            _SPELLED.reset(token)


def _fonts(names: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Returns the fonts that have the letters of the names, and the letters that no font has."""
    from matplotlib import font_manager

    letters = frozenset(map(str, one_line("".join(names))))
    missing = letters - _letters_of(font_manager.findfont(DEFAULT_FONT))
    fonts = [DEFAULT_FONT]
    installed = [
        entry for entry in font_manager.fontManager.ttflist if not entry.name.startswith(BOXES)
    ]
    while missing:
        best = max(installed, key=lambda entry: len(missing & _letters_of(entry.fname)))
        if not missing & _letters_of(best.fname):
            break
        fonts.append(best.name)
        missing -= _letters_of(best.fname)
    return fonts, missing


def _spellings(letters: Collection[str], names: Sequence[str]) -> dict[str, str]:
    r"""Returns a number and the code points of every word of these letters, the longest words first.

    >>> _spellings("\u65b9\u6cd5", ["fedavg", "\u65b9\u6cd5 a"])
    {'\u65b9\u6cd5': '1 (U+65B9 U+6CD5)'}
    """
    if not letters:
        return {}
    found = re.findall(f"[{re.escape(''.join(letters))}]+", "\n".join(names))
    spelled = {}
    for number, word in enumerate(dict.fromkeys(found), 1):
        code_points = " ".join(f"U+{ord(letter):04X}" for letter in word)
        spelled[word] = f"{number} ({code_points})"
    return dict(sorted(spelled.items(), key=lambda item: -len(item[0])))


@functools.cache
def _letters_of(path: str) -> frozenset[str]:
    """Returns the characters that a font can draw; none of one with pictures of a fixed size, or that is damaged."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()


def grid(
    count: int, height: float = 1.0, width: float = WIDTH, **options: Any
) -> tuple[Figure, list[Axes]]:
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

    # two ticks would be fractions
    axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def set_title(axes: Axes, text: str, width: int = 40) -> None:
    """Sets the title of a panel; a word that is wider than the panel makes its letters smaller."""
    title = plain(text, width)
    longest = max(map(len, title.split("\n")))
    axes.set_title(title, fontsize=FONT * min(1.0, width / max(longest, 1)))


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
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    if not handles:
        return
    longest = max(len(line) for label in handles for line in label.split("\n"))
    columns = max(1, int(WIDTH / (0.55 * INCH * (longest + 9))))  # 9 for the line
    lines = max(label.count("\n") + 1 for label in handles)
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + (0.2 + 1.2 * lines) * INCH * rows)
    options: dict[str, Any] = {"ncols": columns, "handlelength": 3, "frameon": False}
    figure.legend([*handles.values()], [*handles], loc="outside lower center", **options)


def save(
    drawn: Drawing, folder: Path, suffixes: Sequence[str] = ("png", "pdf", "csv")
) -> list[Path]:
    """Writes a figure as PNG and PDF, and its numbers as CSV; the same figure gives the same bytes."""
    title = plain(drawn.title, int(12.5 * drawn.figure.get_figwidth()))
    drawn.figure.suptitle(title, x=0.01, ha="left", fontsize=FONT + 1)
    add_legend(drawn.figure)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{drawn.name}.{suffix}" for suffix in suffixes]
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
    for suffix, path in zip(suffixes, paths, strict=True):
        if suffix == "csv":
            files.replace(path, csv_text(drawn.numbers))
        else:
            drawn.figure.savefig(path, dpi=200, metadata=metadata[suffix])
            # keeps the layout of the first file, which takes half of the time
            drawn.figure.set_layout_engine("none")
    return paths
