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

    done, metric, shown_at = 0, "", 0.0
    handle = display(HTML(bar(0, total, "compiling")), display_id=True)
    assert handle is not None, "a display with an id has a handle"

    def show(records: list[Record]) -> None:
        nonlocal done, metric, shown_at
        done = records[-1]["round"]
        evaluated = [record for record in records if record.get(f"test_{primary_metric(record)[0]}") is not None]
        metric = metric_text(evaluated[-1]) if evaluated else metric
        if time.monotonic() - shown_at > EVERY:
            handle.update(HTML(bar(done, total, metric)))
            shown_at = time.monotonic()

    try:
        yield show
    finally:
        stopped = ["stopped"] if done < total else []
        handle.update(HTML(bar(done, total, "; ".join(filter(None, [*stopped, metric])))))


def bar(done: int, total: int, text: str) -> str:
    """Returns a progress bar as HTML.

    >>> bar(2, 4, "a < b")
    '<div>round 2/4 <progress value="2" max="4"></progress> a &lt; b</div>'
    """
    return f'<div>round {done}/{total} <progress value="{done}" max="{total}"></progress> {html.escape(text)}</div>'
