"""Tables as frames, and their forms: CSV, LaTeX and HTML by pandas."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedvg_jax.host.errors import one_line
from fedvg_jax.study.groups import Frame

LEAD = ("setting", "method", "against", "condition")
"""Titles of columns with names, which stand on the left."""


class Table(NamedTuple):
    """A table with a caption above and notes below."""

    name: str
    """Stem of its files."""
    title: str
    numbers: Frame
    """The cells of the CSV file: names and unrounded numbers; missing ones are nan."""
    shown: Frame
    """Texts for people; one in ** is bold, as in Markdown."""
    notes: Sequence[str] = ()


def number(value: Any, digits: int = 2, sign: str = "") -> str:
    """Returns a number for people; a dash where there is none.

    >>> number(1.234), number(float("nan")), number(0.5, 1, "+"), number(-0.001)
    ('1.23', '–', '+0.5', '0.00')
    """
    return f"{value:{sign}z,.{digits}f}" if math.isfinite(value) else "–"


def spread(mean: float, std: float, digits: int = 2) -> str:
    """Returns mean and standard deviation, without the latter for one run.

    >>> spread(91.234, 0.5), spread(91.234, float("nan"))
    ('91.23 ± 0.50', '91.23')
    """
    text = number(mean, digits)
    return f"{text} ± {std:.{digits}f}" if math.isfinite(std) else text


def p_value(value: float) -> str:
    """Returns a p value for people.

    >>> p_value(0.0625), p_value(1e-5)
    ('0.062', '< 0.001')
    """
    return "< 0.001" if value < 0.001 else number(value, 3)


# --- forms


def csv_text(rows: Frame) -> str:
    """Returns a table as CSV, with ten significant digits, which hold a float32."""
    return rows.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def latex(table: Table) -> str:
    """Returns a `tabular` environment with booktabs' rules; a paper adds its caption and notes."""
    alignment = "".join("l" if title in LEAD else "r" for title in table.shown)
    styled = _styled(table.shown, "latex", "textbf:--rwrap;")
    return styled.to_latex(hrules=True, column_format=alignment).replace("<", r"\textless{}")


def hypertext(table: Table) -> str:
    """Returns a `table` element below its title, and its notes as paragraphs."""
    notes = "".join(f"<p class=note>{plain_html(note)}</p>\n" for note in table.notes)
    return f"<p class=caption>{plain_html(table.title)}</p>\n{html_table(table.name, table.shown)}{notes}"


def html_table(name: str, shown: Frame) -> str:
    """Returns a `table` element of texts; its id is T_NAME."""
    num_names = sum(title in LEAD for title in shown)
    styled = _styled(shown, "html", "font-weight: bold")
    return styled.to_html(table_uuid=name, table_attributes=f'class="lead{num_names}"')


def _styled(shown: Frame, language: str, bold: str) -> Any:
    """Returns a frame of texts in which every character stands for itself, without its index."""
    from pandas.io.formats.style import Styler

    styled: Any = Styler(shown.map(one_line).rename(columns=one_line), cell_ids=False)
    styled = styled.map(lambda text: bold if text.startswith("**") else None)
    styled = styled.format(lambda text: text.replace("**", ""), escape=language)
    return styled.format_index(escape=language, axis="columns").hide(axis="index")


def plain_html(text: str) -> str:
    """Returns a text in which every character stands for itself in HTML."""
    return html.escape(one_line(text))
