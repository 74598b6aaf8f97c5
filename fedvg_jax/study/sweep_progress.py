"""What a sweep shows in the terminal: points and rounds as they finish, the time left, and a table of results."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.study.sweeps import Observers, SweepResult
from fedvg_jax.views.labels import method_label

SEEDS = ("seed", "partition_seed")
"""Settings whose values are repetitions: the table has means over them."""


class Part(NamedTuple):
    """The rounds of a point that one process has computed."""

    point: Point
    start: int
    """rounds that were done before"""
    stop: int
    """rounds that were done afterwards"""


class Clock:
    """Estimates the time left: the rounds left, at the pace of those that all processes have computed since the start.

    Attributes:
        points_done: Points that are finished, those of earlier processes included.
    """

    def __init__(self, points: Sequence[Point], num_done: int):
        self.total, self.points_done = len(points), num_done
        self._start, self._computed = time.perf_counter(), 0
        self._left = {point.name: point.config.rounds for point in points[num_done:]}

    def start_point(self, point: Point, num_done: int = 0) -> None:
        """Starts a point, perhaps anew, of which `num_done` rounds were computed before."""
        self._left[point.name] = point.config.rounds - num_done

    def count(self, point: Point, number: int) -> None:
        """Counts the rounds up to `number` of a point."""
        left = min(self._left[point.name], point.config.rounds - number)
        self._computed += self._left[point.name] - left
        self._left[point.name] = left

    def end_point(self, point: Point) -> None:
        """Ends a point, which may have computed fewer rounds than it has."""
        self.points_done += 1
        self._left.pop(point.name, None)

    def end_others(self, parts: Sequence[Part]) -> None:
        """Ends points that other processes have computed meanwhile."""
        for point, start, stop in parts:
            self.start_point(point, start)
            self.count(point, stop)
            self.end_point(point)

    def left(self) -> str:
        """Returns the time left in words."""
        if not self._computed:
            return "time left unknown"
        pace = (time.perf_counter() - self._start) / self._computed
        return f"about {duration(pace * sum(self._left.values()))} left"


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
    points: Sequence[Point],
    num_done: int,
    exit_message: Callable[[], str] | None = None,
    ended_elsewhere: Callable[[Point], Sequence[Part]] = lambda point: (),
) -> Iterator[Observers]:
    """Shows points and rounds as they finish; yields what the sweep reports to.

    In a terminal: two bars. Elsewhere: a line per point.

    Args:
        console: where to print.
        points: of the sweep, the finished ones first.
        num_done: how many are finished.
        exit_message: see `runs.sweeps.Observers`.
        ended_elsewhere: called with every point that this process has computed; returns what other processes have
            finished since the last call.
    """
    clock = Clock(points, num_done)

    def log(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, shown, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("points", total=len(points), completed=num_done, text="")
        rounds = progress.add_task("rounds", total=None, text="")

        def start(point: Point) -> None:
            clock.start_point(point)
            progress.reset(rounds, total=point.config.rounds, text=point.name)

        def count(point: Point, records: list[Record]) -> None:
            number = records[-1]["round"]
            clock.count(point, number)
            progress.update(rounds, total=point.config.rounds, completed=number, text=point.name)
            progress.update(bar, text=clock.left())

        def end(point: Point, result: History | Failure) -> None:
            clock.end_point(point)
            clock.end_others(ended_elsewhere(point))
            log(f"{clock.points_done}/{clock.total}  {point.name}: {result_text(result)}, {clock.left()}")
            progress.update(bar, completed=clock.points_done, text=clock.left())

        yield Observers(start, count, end, log, exit_message, on_resume=clock.start_point)


def result_text(result: History | Failure) -> str:
    """Returns the result of a point in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name, value = final_metric(result)
    text = f"{value:.2%}" if name == "accuracy" and value is not None else f"{value}"
    return f"test {name} {text}, {result.summary['run_seconds']:.1f} s"


def final_metric(history: History) -> tuple[str, float | None]:
    """Returns name and value of the test metric after the last round: accuracy, or loss for a task without it."""
    name = "accuracy" if "test_accuracy_final" in history.summary else "loss"
    return name, history.summary.get(f"test_{name}_final")


def result_table(results: Sequence[SweepResult], points: Sequence[Point], title: str = "") -> Table:
    """Returns mean and standard deviation of the final test metric over the seeds.

    Rows are the settings that vary except seeds and alpha; alpha, where it varies, has the columns.

    Args:
        results: of the points that are done.
        points: all points of the sweep.
        title: of the table.
    """
    varying = [name for name in dict.fromkeys(name for p in points for name in p.values) if _varies(points, name)]
    rows = [name for name in varying if name not in (*SEEDS, "alpha")]
    alphas = list(dict.fromkeys(p.values.get("alpha") for p in points)) if "alpha" in varying else [None]
    by_name = {result.name: result.result for result in results}
    cells: dict[tuple, dict[Any, list]] = {}
    for point in points:
        row = tuple(_text(point.values.get(name), name) for name in rows)
        column = point.values.get("alpha") if alphas != [None] else None
        cells.setdefault(row, {}).setdefault(column, []).append(by_name.get(point.name))
    names = {final_metric(r)[0] for r in by_name.values() if isinstance(r, History)} or {"accuracy"}
    metric = " or ".join(sorted(names))
    heads = [f"alpha {alpha:g}" if alpha is not None else f"test {metric}, final round" for alpha in alphas]
    table = Table(*rows, *heads, title=escape(title) or None)
    unit = " in %" if metric == "accuracy" else ""
    table.caption = f"test {metric}{unit} after the last round, mean ± standard deviation (number of runs)"
    for row, columns in cells.items():
        table.add_row(*row, *(cell_text(columns.get(alpha, [])) for alpha in alphas))
    return table


def cell_text(results: Sequence[History | Failure | None]) -> str:
    """Returns the cell of points that differ in their seeds; None stands for a point that is not done.

    >>> cell_text([Failure("diverged", 3, "client 2 diverged"), None])
    '1 diverged, 1 missing'
    """
    metrics = [final_metric(result) for result in results if isinstance(result, History)]
    values = [value for _, value in metrics if value is not None]
    factor, digits = (100, 2) if metrics and metrics[0][0] == "accuracy" else (1, 4)
    parts = []
    if values:
        spread = f" ± {factor * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        parts.append(f"{factor * statistics.mean(values):.{digits}f}{spread} ({len(values)})")
    counts = Counter("missing" if r is None else r.kind for r in results if not isinstance(r, History))
    counts["not finite"] = len(metrics) - len(values)
    return ", ".join([*parts, *(f"{count} {kind}" for kind, count in sorted(counts.items()) if count)])


def _varies(points: Sequence[Point], name: str) -> bool:
    return len({repr(point.values.get(name)) for point in points}) > 1


def _text(value: Any, name: str) -> str:
    if value is None:
        return ""
    value = method_label(value) if name == "method" else value
    return f"{value:g}" if isinstance(value, float) else escape(str(value))
