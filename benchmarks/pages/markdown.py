"""Markdown: tables, and numbers with their interval."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def escape(text: str) -> str:
    """Returns plain text as Markdown that shows it unchanged."""
    return re.sub(r"([\\*_\[\]<>|~$])", r"\\\1", text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def interval(values: Sequence[float]) -> str:
    """Returns a mean with its interval as text; one pair of runs has no interval.

    >>> interval([0.25, 0.1, 0.4]), interval([0.25, math.nan, math.nan])
    ('+0.25 (+0.10 to +0.40)', '+0.25 (–)')
    """
    mean, low, high = values
    limits = "–" if math.isnan(low) else f"{low:+.2f} to {high:+.2f}"
    return f"{mean:+.2f} ({limits})"


def number(seconds: float) -> str:
    """Returns a number with three significant digits.

    >>> number(0.0012345), number(12.345)
    ('0.00123', '12.3')
    """
    return f"{seconds:.3g}"
