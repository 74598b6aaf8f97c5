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
  --tune-budget N        combinations that every method tries, at random
  --jobs N               processes that share the points, each with its cores;
                         auto: one per core, where points use one core each
  --executor submitit    the processes are jobs of SLURM, through submitit
  --slurm NAME=VALUE...  parameters of submitit's executor
  --dry-run              list unfinished points, estimate time, train nothing

Options of a run: python -m fedvg_jax.sweep --help-all
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files, hardware
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
    if workers.STARTED_BY in os.environ:
        with contextlib.suppress(UsageError):  # the process that started this one says it
            compute_beside(read_command_line(argv))
        return 0
    return commands.guarded(lambda: run(read_command_line(argv)))


def run(command: CommandLine) -> int:
    """Computes or plans the points of a sweep, shows them, and returns the exit code."""
    from rich.console import Console

    console = Console()
    for line in opening_lines(command):
        say(console, line)
    sweep_folder.check_sources(command.points.points)
    tracking.require(command.points.points[0].config, has_folder=True)
    if command.dry_run:
        return _show_plan(command, console)
    if command.slurm is not None and not workers.is_job():
        sweep_folder.refuse_taken(command.out)
        say(console, workers.submit(command.argv, command.jobs or 1, command.out / "submitit", command.slurm))
        say(console, f"folder of the sweep: {command.out}; --dry-run lists what is left")
        return 0
    try:
        with workers.further_processes(command.argv, _num_processes(command)) as start:
            phase = _compute_all(command, console, start)
    except Stopped as stop:
        say(console, f"folder of the sweep: {command.out}; the same command continues the sweep")
        return endings.exit_code(stop.signal)
    return _show_results(command, phase, console)


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and of its tuning."""
    sweep, points = command.points
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in sweep.axes]
    lines = [f"sweep of {count(len(points))}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"]
    seeds, partitions = ({getattr(p.config, name) for p in points} for name in RANGED)
    if len(seeds) > 1 and len(partitions) == 1:
        lines.append(f"all seeds share one partition (--partition-seed {min(partitions)})")
    if command.tuning and command.tuning_runs:
        num_runs, seeds = count(len(command.tuning_runs.points)), count(len(command.tuning.seeds), "seed")
        lines.append(f"tuning {', '.join(command.tuning.settings)} first: {num_runs} with {seeds}, chosen on D_val")
        if any(point.config.dp.clip for point in command.tuning_runs.points):
            lines.append("epsilon does not count the tuning runs, which see the same clients")
    return lines


# --- phases


class Phase(NamedTuple):
    """The tuning runs, or the points of the sweep itself."""

    out: Path
    """folder of the points"""
    points: list[Point]

    def pending(self, points: Sequence[Point]) -> list[Point]:
        """Returns those points of which something is left to compute."""
        return [point for point in points if not sweep_folder.is_done(self.out, point)]


def phases(command: CommandLine) -> list[Phase]:
    """Returns the phases of a sweep in their order, with the values that the points have before tuning."""
    runs = command.tuning_runs
    first = [Phase(command.out / tuning.FOLDER, runs.points)] if runs else []
    return [*first, Phase(command.out, command.points.points)]


class Stopped(Exception):
    """A signal has stopped the sweep."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


def _num_processes(command: CommandLine) -> int:
    """Returns the number of processes on this machine."""
    if workers.is_job():
        return 1
    pending = [point for phase in phases(command) for point in phase.pending(phase.points)]
    return command.jobs or workers.auto_jobs(pending, hardware.without_jax())


def _compute_all(command: CommandLine, console: Console, start: Callable[[], None]) -> Phase:
    """Computes the tuning runs, if there are any, and the points; returns the phase of these.

    Args:
        command: see `CommandLine`.
        console: where to print.
        start: starts the other processes.

    Raises:
        Stopped: by a signal.
        UsageError: some point cannot work.
    """
    commands.start_jax(command.points.points[0].config)
    from fedvg_jax.study import sweeps

    sweeps.check([point for phase in phases(command) for point in phase.pending(phase.points)])
    start()
    for phase in _opened_phases(command, console):
        with sweeps.sweep_progress(console, phase.points, phase.out) as observers:
            _, stopped_by = sweeps.compute(phase.points, phase.out, observers)
        if stopped_by:
            raise Stopped(stopped_by)
    return phase


def compute_beside(command: CommandLine) -> None:
    """Computes points beside the process that started this one, and ends with it."""

    def stop_without_parent(*_: object) -> None:
        if workers.is_orphan():
            signal.raise_signal(signal.SIGTERM)

    commands.start_jax(command.points.points[0].config)
    from fedvg_jax.study import sweeps

    observers = sweep_folder.Observers(on_start=stop_without_parent, on_records=stop_without_parent)
    for phase in _opened_phases(command):
        if sweeps.compute(phase.points, phase.out, observers, retries=False)[1]:
            return


def _opened_phases(command: CommandLine, console: Console | None = None) -> Iterator[Phase]:
    """Yields every phase with its folder, that of the points with the values that the tuning runs have chosen."""
    *tried, phase = phases(command)
    chosen = {}
    if command.tuning and command.tuning_runs:
        (grid,) = tried
        sweep_folder.refuse_taken(command.out)
        sweep_folder.open_folder(grid.out, sweep_folder.document(command.tuning_runs, grid.points))
        yield grid
        choices = tuning.choose(grid.out, grid.points, command.tuning)
        for cell, choice in choices.items() if console else ():
            assert console is not None, "by the line above"
            say(console, f"{cell}: {tuning.chosen_text(choice, command.tuning)}")
        phase = phase._replace(points=tuning.chosen_points(phase.points, choices))
        chosen = tuning.as_json(command.tuning, choices)
    sweep_folder.open_folder(phase.out, sweep_folder.document(command.points, phase.points, tuning=chosen))
    yield phase


def _show_results(command: CommandLine, phase: Phase, console: Console) -> int:
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
    sweep_folder.refuse_unfinished(command.out, phase.points)
    if refusal:
        raise refusal
    return 0


def _draw_report(out: Path, console: Console) -> UsageError | None:
    """Writes the report of a sweep; returns why there is none, unless packages for it are missing."""
    from fedvg_jax.study import report

    if missing := report.missing_packages():
        say(console, f"no report: reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")
        return None
    with files.claimed(out / ".report") as is_mine:
        if not is_mine:
            say(console, f"another process writes the report in {out / 'report'}")
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
    """Lists unfinished points and their programs, and estimates the time; writes only to the cache."""
    commands.start_jax(command.points.points[0].config)
    from fedvg_jax.study import sweeps

    points = [point for phase in phases(command) for point in phase.pending(phase.points)]
    num_planned = sum(len(phase.points) for phase in phases(command))
    num_done = num_planned - len(points)
    done = f"; {num_done} of {count(num_planned)} finished" if num_done else ""
    if not points:
        say(console, f"nothing to compute{done}")
        return 0
    total = compiling = 0.0
    groups = sweeps.by_program(points)
    for i, group in enumerate(groups):
        with console.status(f"timing program {i + 1} of {len(groups)}"):
            seconds, compile_seconds = _estimate(group)
        total, compiling = total + seconds, compiling + compile_seconds
        say(console, f"program {i + 1}: {count(len(group))}, about {sweeps.duration(seconds)}")
        for point in group:
            say(console, f"  {point.name}")
    work = f"{count(len(points))}, {count(len(groups), 'program')}"
    say(console, f"{work}: about {sweeps.duration(total)}, and {sweeps.duration(compiling)} of compiling{done}")
    return 0


def _estimate(group: Sequence[Point]) -> tuple[float, float]:
    """Returns the seconds that points of one program take, and those of compiling it.

    Points that differ in their seeds only are timed once.
    """
    from fedvg_jax.runs.assemble import simulation
    from fedvg_jax.views import display

    counts = collections.Counter(dataclasses.replace(p.config, seed=0, partition_seed=0) for p in group)
    predictions = {config: display.predict(simulation.simulation(config)) for config in counts}
    seconds = sum(predictions[config].seconds * count for config, count in counts.items())
    return seconds, sum(prediction.compile_seconds for prediction in predictions.values())


if __name__ == "__main__":
    run_and_exit(main)
