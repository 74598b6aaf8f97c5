"""A history as HTML for notebooks: a small table, and curves as SVG. It needs no script, style sheet or network."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_POINTS = 300
"""Points of one curve; of longer ones only some are drawn."""

COLOURS = {"test": "#1f77b4", "val": "#e07b00"}
"""Part -> colour, for light and dark backgrounds."""

LABELS = {"test": "test", "val": "validation"}

WIDTH, HEIGHT = 420, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 76, 12, 26
"""Margins for the labels, pixels."""


class Curve(NamedTuple):
    """One metric of one part over rounds."""

    part: str
    rounds: list[int]
    values: list[float]


def page(title: str, entries: Sequence[tuple[str, str]], records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a history, and its curves below.

    Args:
        title: of the table.
        entries: its rows, (name, value).
        records: one per round.
    """
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in entries)
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>{curves_svg(records)}"


def curves_svg(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns test and validation accuracy, or loss, over rounds; empty where fewer than two rounds were evaluated."""
    metric = "accuracy" if any(r.get("test_accuracy") is not None for r in records) else "loss"
    curves = [curve for part in COLOURS if len((curve := _curve(records, part, metric)).rounds) > 1]
    if not curves:
        return ""
    unit = 100 if metric == "accuracy" else 1
    values = [unit * value for curve in curves for value in curve.values]
    ends = min(values), max(values)
    low, high = _range(*ends)
    last = max(curve.rounds[-1] for curve in curves)
    parts = [_frame(metric, (low, high), ends, last)]
    for curve in curves:
        points = [(_x(r, last), _y(unit * v, low, high)) for r, v in zip(curve.rounds, curve.values, strict=True)]
        parts.append(_line(curve.part, points))
    parts += _labels([(curve.part, _y(unit * curve.values[-1], low, high)) for curve in curves])
    label = html.escape(f"{metric} over rounds")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{label}" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def _curve(records: Sequence[Mapping[str, Any]], part: str, metric: str) -> Curve:
    """Returns the finite values of a metric, at most `MOST_POINTS` of them with the last one."""
    pairs = [(r["round"], r.get(f"{part}_{metric}")) for r in records]
    finite = [(number, v) for number, v in pairs if isinstance(v, (int, float)) and math.isfinite(v)]
    every = -(-len(finite) // MOST_POINTS) or 1
    kept = finite[::-1][::every][::-1]
    return Curve(part, [number for number, _ in kept], [float(value) for _, value in kept])


def _range(low: float, high: float) -> tuple[float, float]:
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _x(number: int, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * number / last


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)


def _frame(metric: str, limits: tuple[float, float], ends: tuple[float, float], last: int) -> str:
    """Returns the axes, with the smallest and the largest value and the last round."""
    low, high = limits
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    suffix = " %" if metric == "accuracy" else ""
    shown = [value for i, value in enumerate(ends) if not i or value > ends[0]]
    texts: list[tuple[float, float, str, str]] = []
    texts += [(LEFT - 4, _y(value, low, high) + 4, "end", f"{value:.3g}{suffix}") for value in shown]
    texts += [(LEFT, HEIGHT - 8, "middle", "0"), (right, HEIGHT - 8, "middle", str(last))]
    texts.append(((LEFT + right) / 2, HEIGHT - 8, "middle", f"round; {metric}"))
    lines = f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'
    return lines + "".join(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
        for x, y, anchor, text in texts
    )


def _line(part: str, points: Sequence[tuple[float, float]]) -> str:
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = "" if part == "test" else ' stroke-dasharray="5 3"'
    return f'<polyline points="{listed}" fill="none" stroke="{COLOURS[part]}" stroke-width="1.6"{dashes}/>'


def _labels(ends: Sequence[tuple[str, float]]) -> list[str]:
    """Returns the names of the curves beside their last points, at least a line apart."""
    placed: list[str] = []
    above = -math.inf
    for part, y in sorted(ends, key=lambda end: end[1]):
        above = max(y + 4, above + 13)
        text = f'<text x="{WIDTH - RIGHT + 5}" y="{above:.1f}" fill="{COLOURS[part]}">{LABELS[part]}</text>'
        placed.append(text)
    return placed
