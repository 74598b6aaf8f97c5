"""`python -m fedvg_jax.sweep [OPTIONS]`, or `fedvg sweep`: one run for every combination of settings.

Trains the runs that are not finished, and prints a table of means and standard
deviations over the seeds. The same command continues a sweep that was stopped,
and joins one that is going on, on every machine that sees its folder.

Examples:
  python -m fedvg_jax.sweep --method fedavg fedvg --alpha 0.05 0.5 --seed 0:5
  python -m fedvg_jax.sweep --config FILE.toml --out DIR

Every option of a run is accepted. With one value all runs share it; with
several values it is an axis, and all axes are crossed:
  --method NAME...       methods of the paper
  --weighting NAME...    beside a method, native is the method's own
  --alpha FLOAT...       Dirichlet concentrations
  --seed A:B | INT...    seeds A to B-1, or seeds one by one
  --partition-seed INT   one partition for all seeds; by default every seed
                         draws its own

Options of the sweep:
  --out DIR              folder of the sweep; the same command continues it
  --config FILE          TOML file of settings, with tables [axes] and [[zip]]
  --tune NAME VALUE...   settings whose values are chosen on D_val, for every
                         method and alpha; may be given several times
  --tune-seeds A:B       seeds of the tuning runs (1000:1002)
  --jobs N               processes that share the points, each with its cores;
                         auto: one per core, where points use one core each
  --dry-run              list unfinished points and programs, train nothing

Options of a run: python -m fedvg_jax.sweep --help-all
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import hardware
from fedvg_jax.runs import endings
from fedvg_jax.study import sweep_folder, tuning, workers
from fedvg_jax.study.sweep_arguments import CommandLine, read_command_line
from fedvg_jax.study.sweep_folder import count
from fedvg_jax.study.sweep_points import RANGED
from fedvg_jax.views import tracking
from fedvg_jax.views.output import say

if TYPE_CHECKING:
    from rich.console import Console

    from fedvg_jax.study.sweep_points import Point


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Args:
        argv: the arguments.

    Returns:
        The exit code: 0 if no point failed; 2 for an error, described in one line; 129, 130 or 143 after SIGHUP, SIGINT
        or SIGTERM.
    """
    if {"-h", "--help", "--help-all"} & set(argv):
        print(__doc__, end="")
        if "--help-all" in argv:
            print(f"\n{command_line.help_text(commands.RUN, 'Options of a run.')}")
        return 0
    if workers.is_started():
        with contextlib.suppress(UsageError, workers.Stopped):  # the process that started this one says it
            _compute(read_command_line(argv))
        return 0
    return commands.guarded(lambda: run(read_command_line(argv)))


def run(command: CommandLine) -> int:
    """Computes or plans the points of a sweep, shows them, and returns the exit code."""
    from rich.console import Console

    console, points = Console(), command.plan.made.points
    for line in opening_lines(command):
        say(console, line)
    sweep_folder.check_sources(points)
    tracking.require(points[0].config, has_folder=True)
    if command.dry_run:
        return _show_plan(command, console)
    try:
        number = workers.num_processes(command.jobs, _pending(command), hardware.without_jax())
        with workers.further_processes(["-m", "fedvg_jax.sweep", *command.argv], number) as start:
            points = _compute(command, console, start)
    except workers.Stopped as stop:
        say(console, f"folder of the sweep: {command.out}; the same command continues the sweep")
        return endings.exit_code(stop.signal)
    return _show_results(command, points, console)


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and of its tuning."""
    (sweep, points), tuned, runs = command.plan.made, command.plan.tuning, command.plan.tuning_runs
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in sweep.axes]
    lines = [f"sweep of {count(len(points))}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"]
    seeds, partitions = ({getattr(p.config, name) for p in points} for name in RANGED)
    if len(seeds) > 1 and len(partitions) == 1:
        lines.append(f"all seeds share one partition (--partition-seed {min(partitions)})")
    if tuned and runs:
        num_runs, seeds = count(len(runs.points)), count(len(tuned.seeds), "seed")
        lines.append(f"tuning {', '.join(tuned.settings)} first: {num_runs} with {seeds}, chosen on D_val")
        if any(point.config.dp.clip for point in runs.points):
            lines.append("epsilon does not count the tuning runs, which see the same clients")
    return lines


def _planned(command: CommandLine) -> list[tuple[Path, Point]]:
    """Returns the tuning runs and the points, each with the folder that it is in."""
    runs = command.plan.tuning_runs
    tried = [(command.out / tuning.FOLDER, point) for point in (runs.points if runs else ())]
    return [*tried, *((command.out, point) for point in command.plan.made.points)]


def _pending(command: CommandLine) -> list[Point]:
    """Returns the tuning runs and the points that are left to compute."""
    return [point for out, point in _planned(command) if not sweep_folder.is_done(out, point)]


def _compute(
    command: CommandLine, console: Console | None = None, start: Callable[[], None] = lambda: None
) -> list[Point]:
    """Computes what is left of a sweep; returns its points, with the values that tuning has chosen.

    Args:
        command: see `CommandLine`.
        console: where to print; None in a process that another one has started.
        start: starts the other processes, after all points are checked.

    Raises:
        Stopped: by a signal.
        UsageError: some point cannot work.
    """
    commands.start_jax()
    from fedvg_jax.study import sweeps

    work = sweeps.Work()
    if console:
        sweeps.check(_pending(command), work)
    start()
    return sweeps.compute_plan(command.plan, console, work)[0]


def _show_results(command: CommandLine, points: Sequence[Point], console: Console) -> int:
    """Prints the table, writes the report, and returns the exit code.

    Raises:
        UsageError: a point failed, or no study can be made of the points.
    """
    from fedvg_jax.study import markup, tables
    from fedvg_jax.study.collect import collect

    refusal = None
    try:
        study = collect([command.out], partial=True)
        console.print(markup.terminal(tables.accuracy(study)), highlight=False)
        refusal = _draw_report(command.out, console)
    except UsageError as error:  # no point is finished, or no study can be made of the points
        refusal = error
    say(console, f"folder of the sweep: {command.out}")
    sweep_folder.refuse_unfinished(command.out, points)
    if refusal:
        raise refusal
    return 0


def _draw_report(out: Path, console: Console) -> UsageError | None:
    """Writes the report of a sweep; returns why there is none, unless packages for it are missing."""
    from fedvg_jax.study import report

    if missing := report.missing_packages():
        say(console, f"no report: reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")
        return None
    try:
        with console.status("writing the report"):
            written = report.write([out], out / "report")
    except UsageError as error:
        say(console, "no report")
        return error
    for line in (*written.findings, f"report: {written.paths[-1]}"):
        say(console, line)
    return None


def _show_plan(command: CommandLine, console: Console) -> int:
    """Lists unfinished points and their programs; writes nothing."""
    from fedvg_jax.study import sweeps

    points, num_planned = _pending(command), len(_planned(command))
    num_done = num_planned - len(points)
    done = f"; {num_done} of {count(num_planned)} finished" if num_done else ""
    if not points:
        say(console, f"nothing to compute{done}")
        return 0
    groups = sweeps.by_program(points)
    for i, group in enumerate(groups):
        say(console, f"program {i + 1}: {count(len(group))}")
        for point in group:
            say(console, f"  {point.name}")
    say(console, f"{count(len(points))}, {count(len(groups), 'program')}{done}")
    return 0


if __name__ == "__main__":
    run_and_exit(main)
