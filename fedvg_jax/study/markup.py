"""Tables as values, and their forms: CSV and HTML by pandas, LaTeX, and the terminal by rich."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.host.errors import one_line

if TYPE_CHECKING:
    import pandas
    from rich.console import Group


class Entry(NamedTuple):
    """One cell of a table."""

    text: str
    values: Mapping[str, Any] = {}
    """What the CSV file holds, by its columns: numbers, unrounded, or a text."""
    is_bold: bool = False


Row = dict[str, Entry]
"""Title of a column -> its entry."""


class Table(NamedTuple):
    """A table with a caption above and notes below."""

    name: str
    """Stem of its files."""
    title: str
    rows: Sequence[Row]
    """At least one, all with the same columns."""
    notes: Sequence[str] = ()


def label(key: str, text: str, shown: str = "") -> Entry:
    """Returns an entry of a text, which may be shown in another form."""
    return Entry(shown or text, {key: text})


def number(key: str, value: float | int | None, digits: int = 2, signed: bool = False) -> Entry:
    """Returns an entry of one number; a dash where there is none.

    >>> number("lr", 1.234).text, number("lr", None).text, number("lr", 0.5, 1, signed=True).text
    ('1.23', '–', '+0.5')
    >>> number("lr", -0.001).text
    '0.00'
    """
    if value is None or not math.isfinite(value):
        return Entry("–", {key: None})
    sign = "+" if signed else ""
    return Entry(f"{value:{sign}z,.{digits}f}", {key: value})


def spread(key: str, mean: float, std: float, n: int, digits: int = 2) -> Entry:
    """Returns an entry of mean, standard deviation and count; without the deviation where n is 1.

    >>> spread("", 91.234, 0.5, 3).text, spread("", 91.234, float("nan"), 1)
    ('91.23 ± 0.50', Entry(text='91.23', values={'mean': 91.234, 'std': None, 'n': 1}, is_bold=False))
    """
    has_mean, has_std = n > 0 and math.isfinite(mean), n > 0 and math.isfinite(std)
    text = f"{mean:z.{digits}f}" if has_mean else "–"
    if has_std:
        text += f" ± {std:.{digits}f}"
    values = {"mean": mean if has_mean else None, "std": std if has_std else None, "n": n}
    return Entry(text, {f"{key} {name}".lstrip(): value for name, value in values.items()})


def p_value(key: str, value: float) -> Entry:
    """Returns an entry of a p value.

    >>> p_value("p", 0.0625).text, p_value("p", 1e-5).text
    ('0.062', '< 0.001')
    """
    return Entry("< 0.001", {key: value}) if value < 0.001 else number(key, value, 3)


# --- forms


def frame(table: Table) -> pandas.DataFrame:
    """Returns the numbers of a table, unrounded, and its texts; missing ones are nan."""
    import pandas

    rows: list[dict[str, Any]] = [{} for _ in table.rows]
    for values, row in zip(rows, table.rows, strict=True):
        for entry in row.values():
            values.update(entry.values)
    return pandas.DataFrame(rows)


def comma_separated(table: Table) -> str:
    """Returns the values of a table as CSV; missing ones are empty."""
    return csv_text(frame(table))


def csv_text(rows: pandas.DataFrame) -> str:
    """Returns a table as CSV, with ten significant digits, which hold a float32."""
    return rows.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def latex(table: Table) -> str:
    """Returns a `tabular` environment with booktabs' rules; the caption and notes of a paper are its own."""
    alignment = "".join("lr"[right] for right in _right(table))
    rows = [[_latex(title) for title in table.rows[0]], *_texts(table, _latex, r"\textbf{{{}}}")]
    header, *body = (_guarded(" & ".join(row)) + r" \\" for row in rows)
    lines = [r"\toprule", header, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{alignment}}}", *lines, r"\end{tabular}"]) + "\n"


def _guarded(row: str) -> str:
    r"""Returns a row that the rule or the \\ before it does not read as its argument.

    >>> _guarded("[a] & 1"), _guarded("b & 1")
    ('{}[a] & 1', 'b & 1')
    """
    return "{}" + row if row.lstrip()[:1] in ("[", "*") else row


def hypertext(table: Table) -> str:
    """Returns a `table` element below its title, and its notes as paragraphs."""
    titles = [*table.rows[0]]
    num_texts = [*_right(table), True].index(True)
    body = html_table(
        table.name, titles, _texts(table, plain_html, "<b>{}</b>"), f"lead{min(num_texts, 3)}"
    )
    notes = "".join(f"<p class=note>{plain_html(note)}</p>\n" for note in table.notes)
    return f"<p class=caption>{plain_html(table.title)}</p>\n{body}{notes}"


def html_table(
    name: str, titles: Sequence[str], rows: Sequence[Sequence[str]], classes: str = "texts"
) -> str:
    """Returns a `table` element.

    Args:
        name: its id.
        titles: of the columns.
        rows: texts that are escaped already.
        classes: "lead1" to "lead3" for as many columns of texts before the columns of numbers, or "texts".
    """
    import pandas

    texts = pandas.DataFrame([*rows], columns=[plain_html(title) for title in titles])
    with pandas.option_context("display.max_colwidth", None):
        return (
            texts.to_html(
                index=False, border=0, escape=False, table_id=plain_html(name), classes=classes
            )
            + "\n"
        )


def terminal(table: Table) -> Group:
    """Returns a table for the terminal."""
    import rich.table
    from rich.console import Group
    from rich.text import Text

    shown = rich.table.Table()
    for title, right in zip(table.rows[0], _right(table), strict=True):
        shown.add_column(
            Text(one_line(title)), justify="right" if right else "left", overflow="fold"
        )
    for row in table.rows:
        shown.add_row(
            *(Text(one_line(entry.text), "bold" if entry.is_bold else "") for entry in row.values())
        )
    lines = [Text(one_line(line)) for line in (table.title, *table.notes)]
    return Group(lines[0], shown, *lines[1:])


FORMATS: dict[str, Callable[[Table], str]] = {
    "tex": latex,
    "csv": comma_separated,
    "html": hypertext,
}
"""Suffix of a file -> the function that returns its text."""


def _texts(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Returns the texts of a table's rows, escaped, with `bold` around those that are bold."""

    def text(entry: Entry) -> str:
        return bold.format(escape(entry.text)) if entry.is_bold else escape(entry.text)

    return [list(map(text, row.values())) for row in table.rows]


def _right(table: Table) -> list[bool]:
    """Returns whether each column is aligned to the right, because it holds numbers."""
    return [any(_holds_number(row[title]) for row in table.rows) for title in table.rows[0]]


def _holds_number(entry: Entry) -> bool:
    return any(not isinstance(value, str) for value in entry.values.values())


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _latex(text: str) -> str:
    """Returns a text in which every character stands for itself in LaTeX."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def plain_html(text: str) -> str:
    """Returns a text in which every character stands for itself in HTML."""
    return html.escape(one_line(text))
