"""What a sweep shows in the terminal: points and rounds as they finish, the time left, and a table of results."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study import sweeps
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.study.sweeps import Observers, SweepResult
from fedvg_jax.views.labels import method_label

SEEDS = ("seed", "partition_seed")
"""Settings whose values are repetitions: the table has means over them."""


class Clock:
    """Estimates the time left from the rounds that all processes have computed since the start.

    The rounds left of each program take the mean of the seconds that its computed rounds have taken, or the mean of all
    rounds where none of its own was computed. The sum is scaled by the time that has passed over the sum of the
    computed rounds' seconds, which several processes shorten, and compiling and reading data lengthen.

    Attributes:
        points_done: Points that are finished, those of earlier processes included.
    """

    def __init__(self, points: Sequence[Point], num_done: int):
        self.total, self.points_done = len(points), num_done
        self._start = time.perf_counter()
        self._program = {point.name: sweeps.program_key(point.config) for point in points}
        self._in_points: dict[str, int] = {}  # rounds done of the points in progress
        self._left: Counter[tuple] = Counter()  # rounds by program, as the next two
        self._computed: Counter[tuple] = Counter()
        self._seconds: dict[tuple, float] = {}
        for point in points[num_done:]:
            self._left[self._program[point.name]] += point.config.rounds

    def start_point(self, point: Point) -> None:
        """Starts a point, perhaps anew."""
        self._left[self._program[point.name]] += self._in_points.pop(point.name, 0)

    def resume(self, point: Point, number: int) -> None:
        """Leaves out the first `number` rounds of a point, which were computed before the start."""
        self._left[self._program[point.name]] -= number
        self._in_points[point.name] = number

    def count(self, point: Point, number: int, seconds: float) -> None:
        """Counts the rounds up to `number` of a point, of which those not counted so far took `seconds`."""
        new = number - self._in_points.get(point.name, 0)
        if new > 0:
            self._add(point, new, seconds)
            self._left[self._program[point.name]] -= new
            self._in_points[point.name] = number

    def end_point(self, point: Point) -> None:
        """Ends a point, which may have computed fewer rounds than it has."""
        self.points_done += 1
        self._left[self._program[point.name]] -= point.config.rounds - self._in_points.pop(point.name, 0)

    def end_others(self, points: Sequence[tuple[Point, int, float]]) -> None:
        """Ends points that other processes have computed meanwhile, with numbers of their rounds and the seconds."""
        self.points_done += len(points)
        for point, number, seconds in points:
            self._add(point, number, seconds)
            self._left[self._program[point.name]] -= point.config.rounds

    def left(self) -> str:
        """Returns the time left in words."""
        seconds = sum(self._seconds.values())
        if not seconds:
            return "time left unknown"
        mean = seconds / self._computed.total()
        rates = {program: self._seconds[program] / number for program, number in self._computed.items() if number}
        left = sum(max(0, number) * rates.get(program, mean) for program, number in self._left.items())
        return f"about {duration((time.perf_counter() - self._start) / seconds * left)} left"

    def _add(self, point: Point, number: int, seconds: float) -> None:
        program = self._program[point.name]
        self._computed[program] += number
        self._seconds[program] = self._seconds.get(program, 0.0) + seconds


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
    ended_elsewhere: Callable[[Point], Sequence[tuple[Point, int, float]]] = lambda point: (),
) -> Iterator[Observers]:
    """Shows points and rounds as they finish; yields what the sweep reports to.

    In a terminal: two bars. Elsewhere: a line per point.

    Args:
        console: where to print.
        points: of the sweep, the finished ones first.
        num_done: how many are finished.
        exit_message: see `runs.sweeps.Observers`.
        ended_elsewhere: called with every point that this process has computed; returns those that other processes have
            computed since the last call, with the numbers of rounds that they computed and the seconds of these.
    """
    clock = Clock(points, num_done)

    def log(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    def print_point(point: Point, result: History | Failure) -> None:
        clock.end_point(point)
        clock.end_others(ended_elsewhere(point))
        log(f"{clock.points_done}/{clock.total}  {point.name}: {result_text(result)}, {clock.left()}")

    def count_rounds(point: Point, records: list[Record]) -> None:
        clock.count(point, records[-1]["round"], sum(record.get("seconds") or 0.0 for record in records))

    plain = Observers(clock.start_point, count_rounds, print_point, log, exit_message, on_resume=clock.resume)
    if not console.is_terminal:
        yield plain
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TextColumn("{task.fields[text]}", markup=False), console=console) as progress:
        bar = progress.add_task("points", total=len(points), completed=num_done, text="")
        rounds = progress.add_task("rounds", total=None, text="")

        def start(point: Point) -> None:
            clock.start_point(point)
            progress.reset(rounds, total=point.config.rounds, text=point.name)

        def show(point: Point, records: list[Record]) -> None:
            count_rounds(point, records)
            progress.update(rounds, total=point.config.rounds, completed=records[-1]["round"], text=point.name)
            progress.update(bar, text=clock.left())

        def end(point: Point, result: History | Failure) -> None:
            print_point(point, result)
            progress.update(bar, completed=clock.points_done, text=clock.left())

        yield Observers(start, show, end, log, exit_message, on_resume=clock.resume)


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
    kinds = [result.kind for result in results if isinstance(result, Failure)]
    counts: Mapping[str, int] = {
        "diverged": kinds.count("diverged"),
        "failed": kinds.count("failed"),
        "missing": sum(result is None for result in results),
        "not finite": len(metrics) - len(values),
    }
    return ", ".join([*parts, *(f"{count} {kind}" for kind, count in counts.items() if count)])


def _varies(points: Sequence[Point], name: str) -> bool:
    return len({repr(point.values.get(name)) for point in points}) > 1


def _text(value: Any, name: str) -> str:
    if value is None:
        return ""
    value = method_label(value) if name == "method" else value
    return f"{value:g}" if isinstance(value, float) else escape(str(value))
