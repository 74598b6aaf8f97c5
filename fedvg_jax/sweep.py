"""`python -m fedvg_jax.sweep [OPTIONS]`, or `fedvg sweep`: one run for every combination of settings.

Trains the runs that are not finished, and prints a table of means and standard
deviations over the seeds. The same command continues a sweep that was stopped.

Examples:
  python -m fedvg_jax.sweep --method fedavg fedvg --alpha 0.05 0.5 --seed 0:5
  python -m fedvg_jax.sweep --config FILE.toml --scale tiny --out DIR

Every option of a run is accepted. With one value all runs share it; with
several values it is an axis, and all axes are crossed:
  --method NAME...       methods of the paper
  --weighting NAME...    beside a method, native is the method's own
  --alpha FLOAT...       Dirichlet concentrations
  --seed A:B | INT...    seeds A to B-1, or seeds one by one
  --partition-seed INT   one partition for all seeds; by default, or with the
                         value follow, every seed draws its own

Options of the sweep:
  --out DIR              folder of the sweep; the same command continues it
  --config FILE          TOML file of settings, with tables [axes] and [[zip]]
  --scale full|tiny      size of the file's sweep: as it stands, or with [tiny]
  --tune NAME VALUE...   settings whose values are chosen on D_val, for every
                         method and alpha; may be given several times
  --tune-seeds A:B       seeds of the tuning runs (1000:1002)
  --tune-budget N        combinations that every method tries, at random
  --jobs N               processes that share the points, each with its cores;
                         auto: one per core, where points use one core each
  --shard I/N            compute the I-th of N parts of the points only
  --executor submitit    the processes are jobs of SLURM, through submitit
  --slurm NAME=VALUE...  parameters of submitit's executor
  --dry-run              list unfinished points, estimate time, train nothing

Options of a run: python -m fedvg_jax.sweep --help-all
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import checks, command_line
from fedvg_jax.config.methods import ALGORITHMS
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files, hardware
from fedvg_jax.runs import stop_signals
from fedvg_jax.study import sweep_folder, tuning, workers
from fedvg_jax.study.sweep_arguments import CommandLine, read_command_line
from fedvg_jax.study.sweep_folder import count
from fedvg_jax.study.sweep_points import RANGED
from fedvg_jax.study.workers import Share
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
    if argv[:1] == [WORKER]:
        return commands.guarded(lambda: work(*pickle.loads(Path(argv[1]).read_bytes())))
    if {"-h", "--help", "--help-all"} & set(argv):
        print(__doc__, end="")
        if "--help-all" in argv:
            print(f"\n{command_line.help_text(commands.RUN, 'Options of a run.')}")
        return 0
    return commands.guarded(lambda: run(read_command_line(argv)))


def run(command: CommandLine) -> int:
    """Computes or plans the points of a sweep, shows them, and returns the exit code."""
    from rich.console import Console

    console = Console()
    for line in opening_lines(command):
        say(console, line)
    for config in (point.config for point in command.points.points):
        checks.require_personal_models(config, ALGORITHMS[config.algorithm].has_personal_models)
    sweep_folder.check_sources(command.points.points)
    tracking.require(command.points.points[0].config, has_folder=True)
    if command.dry_run:
        return _show_plan(command, console)

    return _run_phases(command, console)


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and combinations that repeat a point."""
    sweep, points, merged = command.points
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in sweep.axes]
    lines = [f"sweep of {count(len(points))}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"]
    if merged:
        repeated, kept = next(iter(merged.items()))
        combinations = "1 combination repeats" if len(merged) == 1 else f"{len(merged)} combinations repeat"
        lines.append(f"{combinations} the settings of another point, such as")
        lines.append(f"  {repeated} = {kept}")
    seeds, partitions = ({getattr(p.config, name) for p in points} for name in RANGED)
    if len(seeds) > 1 and len(partitions) == 1:
        lines.append(f"all seeds share one partition (--partition-seed {min(partitions)})")
    if command.tuning and command.tuning_runs:
        num_runs, seeds = count(len(command.tuning_runs.points)), count(len(command.tuning.seeds), "seed")
        lines.append(f"tuning {', '.join(command.tuning.settings)} first: {num_runs} with {seeds}, chosen on D_val")
    return lines


# --- phases


class Phase(NamedTuple):
    """The tuning runs, or the points of the sweep itself."""

    out: Path
    """folder of the points"""
    points: list[Point]
    is_tuning: bool = False

    def pending(self, points: Sequence[Point]) -> list[Point]:
        """Returns those points of which something is left to compute."""
        return [point for point in points if not sweep_folder.is_done(self.out, point)]


def phases(command: CommandLine) -> list[Phase]:
    """Returns the phases of a sweep in their order, with the values that the points have before tuning."""
    runs = command.tuning_runs
    first = [Phase(command.out / tuning.FOLDER, runs.points, is_tuning=True)] if runs else []
    return [*first, Phase(command.out, command.points.points)]


def chosen_text(choice: tuning.Choice) -> str:
    """Returns the choice of a cell in words."""
    values = ", ".join(f"{name} {value}" for name, value in choice.values.items()) or "nothing to choose"
    score = f"{choice.score:.2%}" if choice.metric == "accuracy" else f"{choice.score:.4g}"
    return f"{values} (validation {choice.metric} {score}, {choice.num_runs} runs)"


def _run_phases(command: CommandLine, console: Console) -> int:
    """Computes the tuning runs, if there are any, and the points; prints the table and returns the exit code."""
    *tried, phase = phases(command)
    content = sweep_folder.document(command.points)
    if command.tuning and command.tuning_runs:
        sweep_folder.refuse_taken(command.out)
        sweep_folder.open_folder(tried[0].out, sweep_folder.document(command.tuning_runs), tried[0].points)
        if stopped_by := _compute(command, tried[0], console):
            return _say_stopped(console, stopped_by)
        choices = tuning.choose(tried[0].out, tried[0].points, command.tuning)
        for cell, choice in choices.items():
            say(console, f"{cell}: {chosen_text(choice)}")
        phase = phase._replace(points=tuning.chosen_points(phase.points, choices))
        content |= {"tuning": tuning.as_json(command.tuning, choices)}
    sweep_folder.open_folder(phase.out, content, phase.points)
    stopped_by = _compute(command, phase, console)
    from fedvg_jax.study import markup, tables
    from fedvg_jax.study.collect import collect

    study = refusal = None
    try:
        study = collect([command.out], partial=True)
        console.print(markup.terminal(tables.accuracy(study)), highlight=False)
    except UsageError as error:  # no point is finished, or no study can be made of the points
        refusal = error
    say(console, f"folder of the sweep: {command.out}")
    if stopped_by:
        return _say_stopped(console, stopped_by)
    if command.shard.count > 1:
        refusal = None
        say(console, "the report is written by the command without --shard")
    elif study:
        refusal = _draw_report(command.out, console)
    sweep_folder.refuse_unfinished(command.out, [p for group in _mine(command, phase) for p in group])
    if refusal:
        raise refusal
    return 0


def _say_stopped(console: Console, stopped_by: str) -> int:
    say(console, "the same command continues the sweep")
    return stop_signals.exit_code(stopped_by)


def _mine(command: CommandLine, phase: Phase) -> list[list[Point]]:
    """Returns the points that this command computes, by program; a phase of tuning needs those of all shards."""
    from fedvg_jax.study import sweeps

    mine = workers.shard(sweeps.by_program(phase.points), command.shard)
    names = {point.name for point in mine}
    others = [point for point in phase.points if phase.is_tuning and point.name not in names]
    return sweeps.by_program(mine) + sweeps.by_program(others)


def _compute(command: CommandLine, phase: Phase, console: Console) -> str | None:
    """Computes the points of a phase; returns the signal that stopped it, or None."""
    num_jobs = command.jobs
    if num_jobs is None:
        pending = phase.pending(phase.points)
        mine = pending[: len(pending) // command.shard.count]
        num_jobs = 1 if command.slurm is not None else workers.auto_jobs(mine, hardware.without_jax())
    has_workers = num_jobs > 1 or command.slurm is not None
    if not has_workers:
        commands.start_jax(phase.points[0].config)
    from fedvg_jax.study import sweep_progress, sweeps

    groups = _mine(command, phase)
    mine = [point for group in groups for point in group]
    unfinished = phase.pending(mine)
    waiting = list(unfinished)

    def ended_elsewhere(own: Point | None = None) -> list[Point]:
        """Returns what other processes have finished since the last call."""
        others = [point for point in waiting if point is not own]
        waiting[:] = phase.pending(others)
        return [point for point in others if point not in waiting]

    with sweep_progress.sweep_progress(console, len(mine), len(mine) - len(waiting), ended_elsewhere) as observers:
        if not has_workers:
            return sweeps.compute(mine, phase.out, observers)[1]
        if not unfinished:
            return None

        def report_finished() -> None:
            for point in ended_elsewhere():
                observers.on_start(point)
                observers.on_records(point, [{"round": point.config.rounds}])
                observers.on_end(point, sweeps.load([point], phase.out)[0].result)

        sweep_folder.clear_failures(phase.out, unfinished)
        shares = [Share(i + 1, num_jobs) for i in range(num_jobs)]
        jobs = [(workers.own_first(groups, share), phase.out, share) for share in shares]
        if command.slurm is None:
            return workers.run_local([sys.executable, "-m", "fedvg_jax.sweep", WORKER], jobs, report_finished)
        return workers.run_submitit(work, jobs, command.out / "submitit", command.slurm, report_finished, observers.log)


WORKER = "--worker"
"""Flag of the command of a worker; a file with its arguments follows."""


def work(points: Sequence[Point], out: Path, share: Share) -> int:
    """Computes points beside other workers, and logs problems only; returns the code of the signal that stopped it.

    Args:
        points: all that the workers share, in the order in which this one computes them.
        out: folder of the points.
        share: which of the workers this is.
    """
    if "SUBMITIT_EXECUTOR" not in os.environ:
        workers.take_cores(share)
        workers.stop_without_parent()
    commands.start_jax(points[0].config)
    from fedvg_jax.study import sweeps

    _, stopped_by = sweeps.compute(points, out, retries=False)
    return stop_signals.exit_code(stopped_by) if stopped_by else 0


def _draw_report(out: Path, console: Console) -> UsageError | None:
    """Writes the report of a sweep; returns why there is none, unless packages for it are missing."""
    from fedvg_jax.study import report

    refusal = None
    with files.claimed(out / ".report", waits=True):  # another process may have begun before the last runs ended
        if missing := report.missing_packages():
            line = f"no report: reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'"
        else:
            try:
                with console.status("writing the report"):
                    written = report.write([out], out / "report")
                for finding in written.findings:
                    say(console, finding)
                line = f"report: {written.paths[-1]}"
            except UsageError as error:
                line, refusal = "no report", error
    say(console, line)
    return refusal


def _show_plan(command: CommandLine, console: Console) -> int:
    """Lists unfinished points and their programs, and estimates the time; writes only to the cache."""
    commands.start_jax(command.points.points[0].config)
    from fedvg_jax.study import sweeps
    from fedvg_jax.study.sweep_progress import duration

    planned, points = [], []
    for phase in phases(command):
        mine = workers.shard(sweeps.by_program(phase.points), command.shard)
        planned += mine
        points += phase.pending(mine)
    num_done = len(planned) - len(points)
    done = f"; {num_done} of {count(len(planned))} finished" if num_done else ""
    if not points:
        say(console, f"nothing to compute{done}")
        return 0
    total = compiling = 0.0
    groups = sweeps.by_program(points)
    for i, group in enumerate(groups):
        with console.status(f"timing program {i + 1} of {len(groups)}"):
            seconds, compile_seconds = _estimate(group)
        total, compiling = total + seconds, compiling + compile_seconds
        say(console, f"program {i + 1}: {count(len(group))}, about {duration(seconds)}")
        for point in group:
            say(console, f"  {point.name}")
    work = f"{count(len(points))}, {count(len(groups), 'program')}"
    say(console, f"{work}: about {duration(total)}, and {duration(compiling)} of compiling{done}")
    return 0


def _estimate(group: Sequence[Point]) -> tuple[float, float]:
    """Returns the seconds that points of one program take, and those of compiling it.

    Points that differ in their seeds only are timed once.
    """
    from fedvg_jax.runs.assemble import simulation
    from fedvg_jax.views import dry_run

    counts = collections.Counter(dataclasses.replace(p.config, seed=0, partition_seed=0) for p in group)
    predictions = {config: dry_run.predict(simulation.simulation(config)) for config in counts}
    seconds = sum(predictions[config].seconds * count for config, count in counts.items())
    return seconds, sum(prediction.compile_seconds for prediction in predictions.values())


if __name__ == "__main__":
    run_and_exit(main)
