"""What a sweep shows in the terminal: points and rounds as they finish, and the time left."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study.sweep_folder import Failure, Observers
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.views.output import say


def duration(seconds: float) -> str:
    """Returns a number of seconds in the largest fitting unit.

    >>> duration(42.4), duration(300), duration(9000)
    ('42 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def sweep_progress(
    console: Console,
    num_points: int,
    num_done: int,
    ended_elsewhere: Callable[[Point], Sequence[Point]] = lambda point: (),
) -> Iterator[Observers]:
    """Shows points and rounds as they finish; yields what the sweep reports to.

    In a terminal: two bars. Elsewhere: a line per point.

    Args:
        console: where to print.
        num_points: of the sweep.
        num_done: those that are finished.
        ended_elsewhere: called with every point that this process has computed; returns what other processes have
            finished since the last call.
    """
    num_ended, started = 0, time.perf_counter()

    def left() -> str:
        """Returns the time left in words: the points left, at the pace of those that ended since the start."""
        if not num_ended:
            return "time left unknown"
        pace = (time.perf_counter() - started) / num_ended
        return f"about {duration(pace * (num_points - num_done - num_ended))} left"

    log = functools.partial(say, console)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, shown, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("points", total=num_points, completed=num_done, text="")
        rounds = progress.add_task("rounds", total=None, text="")

        def start(point: Point) -> None:
            progress.reset(rounds, total=point.config.rounds, text=point.name)

        def count(point: Point, records: list[Record]) -> None:
            progress.update(rounds, total=point.config.rounds, completed=records[-1]["round"], text=point.name)

        def end(point: Point, result: History | Failure) -> None:
            nonlocal num_ended
            num_ended += 1 + len(ended_elsewhere(point))
            log(f"{num_done + num_ended}/{num_points}  {point.name}: {result_text(result)}, {left()}")
            progress.update(bar, completed=num_done + num_ended, text=left())

        yield Observers(start, count, end, log)


def result_text(result: History | Failure) -> str:
    """Returns the result of a point in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name = "accuracy" if "test_accuracy_final" in result.summary else "loss"
    value = result.summary.get(f"test_{name}_final")
    text = f"{value:.2%}" if name == "accuracy" and value is not None else f"{value}"
    return f"test {name} {text}, {result.summary['run_seconds']:.1f} s"
