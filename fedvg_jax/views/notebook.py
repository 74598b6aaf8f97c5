"""Progress of a run in the cell of a notebook: one line of HTML that is replaced in place.

It needs no widgets: every front end shows it, and a saved notebook keeps its last state.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator

from fedvg_jax.runs.record.history import Record, primary_metric

EVERY = 0.2
"""Seconds between two updates, so that rounds of milliseconds do not flood the notebook."""


@contextlib.contextmanager
def round_progress(total: int, metric_text: Callable[[Record], str]) -> Iterator[Callable[[list[Record]], None]]:
    """Shows rounds as they finish; yields a function that takes the new records.

    Args:
        total: number of rounds.
        metric_text: text of an evaluated record.
    """
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]  only in notebooks

    start, shown_at = time.monotonic(), 0.0
    first, done, metric = 0, 0, ""
    handle = display(HTML(bar(0, total, "compiling")), display_id=True)
    assert handle is not None, "a display with an id has a handle"

    def text(is_over: bool) -> str:
        elapsed = time.monotonic() - start
        left = elapsed * (total - done) / (done - first) if done > first else 0.0
        times = f"{duration(elapsed)} elapsed" if is_over else f"about {duration(left)} left"
        stopped = "stopped" if is_over and done < total else ""
        return "; ".join(part for part in (stopped, metric, times) if part)

    def show(records: list[Record]) -> None:
        nonlocal first, done, metric, shown_at
        if not done and len(records) > 1:  # of an earlier part of the run
            first = records[-1]["round"]
        done = records[-1]["round"]
        evaluated = [record for record in records if record.get(f"test_{primary_metric(record)[0]}") is not None]
        metric = metric_text(evaluated[-1]) if evaluated else metric
        if time.monotonic() - shown_at > EVERY:
            handle.update(HTML(bar(done, total, text(is_over=False))))
            shown_at = time.monotonic()

    try:
        yield show
    finally:
        handle.update(HTML(bar(done, total, text(is_over=True))))


def bar(done: int, total: int, text: str) -> str:
    """Returns a progress bar as HTML.

    >>> bar(2, 4, "a < b")
    '<div>round 2/4 <progress value="2" max="4"></progress> a &lt; b</div>'
    """
    return f'<div>round {done}/{total} <progress value="{done}" max="{total}"></progress> {html.escape(text)}</div>'


def duration(seconds: float) -> str:
    """Returns a time in words of at most two units.

    >>> duration(7), duration(95), duration(3700)
    ('7 s', '1 min 35 s', '1 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
