"""Tables as values, their texts in Markdown, LaTeX, CSV and HTML, and their form in the terminal."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.host.errors import one_line

if TYPE_CHECKING:
    from rich.console import Group

MAX_NOTES = 12
"""Most notes below a table in the terminal; a count of the others follows."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    keys: tuple[str, ...]
    """Names of its columns in the CSV file: one for every number of an entry, or one for its text."""


class Entry(NamedTuple):
    """One cell of a table."""

    text: str
    numbers: tuple[float | int | None, ...] = ()
    """What the CSV file holds; the text where it is empty."""
    is_bold: bool = False
    key: str = ""
    """What the CSV file holds in place of the text."""


class Table(NamedTuple):
    """A table with a caption above and notes below."""

    name: str
    """Stem of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()


def number(value: float | int | None, digits: int = 2, signed: bool = False) -> Entry:
    """Returns an entry of one number; a dash where there is none.

    >>> number(1.234).text, number(None).text, number(0.5, 1, signed=True).text
    ('1.23', '–', '+0.5')
    """
    if value is None or not math.isfinite(value):
        return Entry("–", (None,))
    return Entry(f"{value:{'+' if signed else ''},.{digits}f}", (value,))


def spread(mean: float, std: float, n: int, digits: int = 2) -> Entry:
    """Returns an entry of mean, standard deviation and count; without the deviation where n is 1.

    >>> spread(91.234, 0.5, 3).text, spread(91.234, float("nan"), 1).text
    ('91.23 ± 0.50', '91.23')
    """
    if not n or not math.isfinite(mean):
        return Entry("–", (None, None, n))
    if not math.isfinite(std):
        return Entry(f"{mean:.{digits}f}", (mean, None, n))
    return Entry(f"{mean:.{digits}f} ± {std:.{digits}f}", (mean, std, n))


def p_value(value: float) -> Entry:
    """Returns an entry of a p value.

    >>> p_value(0.0625).text, p_value(1e-5).text
    ('0.062', '< 0.001')
    """
    if math.isnan(value):
        return Entry("–", (None,))
    return Entry("< 0.001" if value < 0.001 else f"{value:.3f}", (value,))


# --- formats


def markdown(table: Table) -> str:
    """Returns a table in Markdown."""
    rows = [[_marked(e, plain_markdown, "**{}**") for e in row] for row in table.rows]
    header = [plain_markdown(column.title) for column in table.columns]
    lines = [
        f"**{plain_markdown(table.title)}**",
        "",
        _piped(header),
        _piped([":---", "---:"][right] for right in _right(table)),
    ]
    notes = [line for note in table.notes for line in ("", plain_markdown(note))]
    return "\n".join(lines + [_piped(row) for row in rows] + notes) + "\n"


def latex(table: Table) -> str:
    """Returns a `table` environment with a `tabular` of booktabs' rules."""
    alignment = "".join("lr"[right] for right in _right(table))
    rows = [[_marked(e, _latex, r"\textbf{{{}}}") for e in row] for row in table.rows]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(_latex(column.title) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_latex(note)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """Returns the numbers of a table, unrounded, as CSV; missing ones are empty."""
    rows = []
    for row in table.rows:
        values: list[float | int | str | None] = []
        for column, entry in zip(table.columns, row, strict=True):
            numbers = entry.numbers or (entry.key or entry.text,)
            values += [*numbers, *[None] * (len(column.keys) - len(numbers))]
        rows.append(values)
    return csv_text([key for column in table.columns for key in column.keys], rows)


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns texts and numbers, None for missing ones, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell_text(value) for value in row] for row in rows)
    return text.getvalue()


def _cell_text(value: Any) -> str:
    """Returns a value of a CSV file; ten significant digits, which hold a float32. A formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, str):
        return "'" + one_line(value) if value[:1] in tuple("=+@-") else one_line(value)
    return f"{value:.10g}" if math.isfinite(value) else ""


def hypertext(table: Table) -> str:
    """Returns a `table` element with its caption, and its notes as paragraphs."""
    classes = ["" if right else " class=text" for right in _right(table)]
    head = "".join(f"<th{c}>{plain_html(column.title)}</th>" for c, column in zip(classes, table.columns, strict=True))
    rows = [[_marked(e, plain_html, "<b>{}</b>") for e in row] for row in table.rows]
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{text}</td>" for c, text in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    notes = "".join(f"<p class=note>{plain_html(note)}</p>\n" for note in table.notes)
    return (
        f'<table id="{plain_html(table.name)}">\n<caption>{plain_html(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n{notes}"
    )


def terminal(table: Table) -> Group:
    """Returns a table for the terminal."""
    import rich.table
    from rich.console import Group
    from rich.text import Text

    more = [f"and {len(table.notes) - MAX_NOTES} more lines"] * (len(table.notes) > MAX_NOTES)
    shown = rich.table.Table()
    for column, right in zip(table.columns, _right(table), strict=True):
        shown.add_column(Text(one_line(column.title)), justify="right" if right else "left")
    for row in table.rows:
        shown.add_row(*(Text(one_line(e.text), "bold" * e.is_bold) for e in row))
    lines = [Text(one_line(line)) for line in (table.title, *table.notes[:MAX_NOTES], *more)]
    return Group(lines[0], shown, *lines[1:])


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": comma_separated, "html": hypertext}
"""Suffix of a file -> the function that returns its text."""


def _marked(entry: Entry, escape: Callable[[str], str], bold: str) -> str:
    text = escape(entry.text)
    return bold.format(text) if entry.is_bold else text


def _right(table: Table) -> list[bool]:
    """Returns whether each column is aligned to the right, because it holds numbers."""
    return [any(row[i].numbers for row in table.rows) for i in range(len(table.columns))]


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain_markdown(text: str) -> str:
    """Returns a text of which Markdown renders every character as itself."""
    escaped = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "≥": r"$\geq$",
    "×": r"$\times$",
}


def _latex(text: str) -> str:
    """Returns a text of which LaTeX sets every character as itself."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def plain_html(text: str) -> str:
    """Returns a text of which HTML shows every character as itself."""
    return html.escape(one_line(text))
