"""`python -m fedvg_jax.sweep`, or `fedvg sweep`: one run for every combination of settings.

Several values of an option make an axis, and all axes are crossed. A TOML file may have axes, too; see `config.axes`.
The same command continues a sweep that was stopped: finished points are skipped.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedvg_jax import sim
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.core import files, hardware
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import stop_signals
from fedvg_jax.study import sweep_folder, tuning, workers
from fedvg_jax.study.sweep_arguments import PROG, CommandLine, read_command_line
from fedvg_jax.study.sweep_folder import count
from fedvg_jax.study.sweep_points import RANGED
from fedvg_jax.study.workers import Share
from fedvg_jax.views import tracking

if TYPE_CHECKING:
    from rich.console import Console

    from fedvg_jax.study.sweep_points import Point

HELP = f"""usage: {PROG} [OPTIONS]

Trains one federated model for every combination of settings, and prints a
table of means and standard deviations over the seeds.

Examples:
  {PROG} --method fedavg fedvg --alpha 0.05 0.5 --seed 0:5
  {PROG} --config FILE.toml --scale tiny --out DIR

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

Options of a run: {PROG} --help-all"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0 if no point failed; 2 for an error, described in one line; 129, 130 or 143 after SIGHUP, SIGINT
        or SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--help-all"} & set(words):
        print(HELP)
        if "--help-all" in words:
            print(f"\n{command_line.help_text(sim.PROG, sim.PURPOSE)}")
        return 0
    return sim.guarded(lambda: run(read_command_line(words)))


def run(command: CommandLine) -> int:
    """Computes or plans the points of a sweep, shows them, and returns the exit code."""
    if command.worker:
        return _work(command, command.worker)
    from rich.console import Console

    console = Console()
    for line in opening_lines(command):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    sweep_folder.check_sources(command.points.points)
    tracking.require(command.points.points[0].config, has_folder=True)
    if command.dry_run:
        return _show_plan(command, console)

    with stop_signals.say_at_once(lambda: f"stopped at once; the same command continues the sweep in {command.out}"):
        return _run_phases(command, console)


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and combinations that repeat a point."""
    points, merged = command.points
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in command.sweep.axes]
    lines = [f"sweep of {count(len(points))}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"]
    if merged:
        repeated, kept = next(iter(merged.items()))
        combinations = "1 combination repeats" if len(merged) == 1 else f"{len(merged)} combinations repeat"
        lines.append(f"{combinations} the settings of another point, such as")
        lines.append(f"  {repeated} = {kept}")
    seeds, partitions = ({getattr(p.config, name) for p in points} for name in RANGED)
    if len(seeds) > 1 and len(partitions) == 1:
        lines.append(f"all seeds share one partition (--partition-seed {min(partitions)})")
    if command.grid:
        lines += tuning_lines(command)
    return lines


def tuning_lines(command: CommandLine) -> list[str]:
    """Returns what is printed of the tuning runs."""
    assert command.grid is not None
    grid, points = command.grid.tuning, command.grid.points.points
    tuned = [name for axis in grid.axes for name in axis.names]
    seeds = count(len(grid.seeds), "seed")
    return [f"tuning {', '.join(tuned)} first: {count(len(points))} with {seeds}, chosen on D_val"]


# --- phases


class Phase(NamedTuple):
    """The tuning runs, or the points of the sweep itself."""

    name: str
    out: Path
    """folder of the points"""
    points: list[Point]

    def is_done(self, point: Point) -> bool:
        """Returns whether nothing is left to compute of a point."""
        return sweep_folder.is_done(self.out, point)


def _run_phases(command: CommandLine, console: Console) -> int:
    """Computes the tuning runs, if there are any, and the points; prints the table and returns the exit code."""
    choices = {}
    if command.grid:
        phase = tuning_phase(command)
        sweep_folder.refuse_taken(command.out)
        content = sweep_folder.document(command.grid.sweep, command.grid.points)
        sweep_folder.open_folder(phase.out, content, phase.points)
        if stopped_by := _compute(command, phase, console):
            return _say_stopped(console, stopped_by)
        choices = tuning.choose(phase.out, phase.points, command.grid.tuning)
        for line in chosen_lines(choices):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    phase = open_final(command, choices)
    stopped_by = _compute(command, phase, console)
    from rich.console import Group

    from fedvg_jax.study import sweep_progress

    results = sweep_progress.result_table(command.out)
    is_any_finished = isinstance(results, Group)
    if is_any_finished or not stopped_by:
        console.print(results, highlight=False)
    console.print(f"folder of the sweep: {command.out}", highlight=False, soft_wrap=True)
    if stopped_by:
        return _say_stopped(console, stopped_by)
    if command.shard:
        console.print("the report is written by the command without --shard", highlight=False)
    refusal = _draw_report(command.out, console) if command.shard is None and is_any_finished else None
    sweep_folder.refuse_unfinished(command.out, _mine(command, phase))
    if refusal:
        raise refusal
    return 0


def _say_stopped(console: Console, stopped_by: str) -> int:
    console.print("the same command continues the sweep", highlight=False)
    return stop_signals.exit_code(stopped_by)


def tuning_phase(command: CommandLine) -> Phase:
    """Returns the tuning runs of a sweep."""
    assert command.grid is not None
    return Phase("tuning", command.out / tuning.FOLDER, command.grid.points.points)


def open_final(command: CommandLine, choices: Mapping[str, tuning.Choice]) -> Phase:
    """Makes or checks the folder of the sweep; returns its points, with the values that were chosen."""
    points, content = command.points.points, sweep_folder.document(command.sweep, command.points)
    if command.grid:
        points = tuning.chosen_points(points, {cell: choice.values for cell, choice in choices.items()})
        content |= {"tuning": tuning.as_json(command.grid.tuning, choices)}
    sweep_folder.open_folder(command.out, content, points)
    return Phase("final", command.out, points)


def chosen_lines(choices: Mapping[str, tuning.Choice]) -> list[str]:
    """Returns a line for the choice of every cell."""
    lines = []
    for cell, choice in choices.items():
        values = ", ".join(f"{name} {value}" for name, value in choice.values.items()) or "nothing to choose"
        score = f"{choice.score:.2%}" if choice.metric == "accuracy" else f"{choice.score:.4g}"
        lines.append(f"{cell}: {values} (validation {choice.metric} {score}, {choice.num_runs} runs)")
    return lines


def _mine(command: CommandLine, phase: Phase) -> list[Point]:
    """Returns the points that this command computes, in order; a phase of tuning needs those of all shards."""
    from fedvg_jax.study import sweeps

    groups = sweeps.by_program(phase.points)
    if command.shard:
        mine = workers.shard(groups, command.shard)
        names = {point.name for point in mine}
        others = [point for point in phase.points if phase.name == "tuning" and point.name not in names]
        groups = sweeps.by_program(mine) + sweeps.by_program(others)
    return workers.own_first(groups, command.worker or Share(1, 1))


def _compute(command: CommandLine, phase: Phase, console: Console) -> str | None:
    """Computes the points of a phase; returns the signal that stopped it, or None."""
    jobs = _num_jobs(command, [point for point in phase.points if not phase.is_done(point)])
    has_workers = jobs > 1 or command.slurm is not None
    if not has_workers:
        sim.start_jax(phase.points[0].config)
    from fedvg_jax.study import sweep_progress, sweeps

    mine = sorted(_mine(command, phase), key=lambda point: not phase.is_done(point))  # stable
    pending = [point for point in mine if not phase.is_done(point)]

    def ended_elsewhere(own: Point | None = None) -> list[Point]:
        """Returns what other processes have finished since the last call."""
        ended = [point for point in pending if point is not own and phase.is_done(point)]
        pending[:] = [point for point in pending if point is not own and point not in ended]
        return ended

    with sweep_progress.sweep_progress(console, mine, len(mine) - len(pending), ended_elsewhere) as observers:
        if not has_workers:
            return sweeps.compute(mine, phase.out, observers)[1]

        def report_finished() -> None:
            for point in ended_elsewhere():
                observers.on_start(point)
                observers.on_records(point, [{"round": point.config.rounds}])
                observers.on_end(point, sweeps.load([point], phase.out)[0].result)

        return _share_out(command, jobs, phase, list(pending), report_finished, observers.log)


def _num_jobs(command: CommandLine, pending: Sequence[Point]) -> int:
    """Returns the number of processes that compute the points."""
    if command.jobs is not None:
        return command.jobs
    num_mine = len(pending) // (command.shard.count if command.shard else 1)
    return 1 if command.slurm is not None else workers.auto_jobs(pending[:num_mine], hardware.without_jax())


def _share_out(
    command: CommandLine,
    count: int,
    phase: Phase,
    pending: Sequence[Point],
    on_poll: Callable[[], None],
    log: Callable[[str], None],
) -> str | None:
    """Computes points in worker processes, or in jobs of submitit; returns the signal that stopped them."""
    if not pending:
        return None
    words = [*command.words, f"--phase={phase.name}"]
    sweep_folder.clear_failures(phase.out, pending)
    if command.slurm is None:
        return workers.run_local([sys.executable, "-m", "fedvg_jax.sweep", *words], count, on_poll)
    jobs = [[*words, f"--worker={i + 1}/{count}"] for i in range(count)]
    return workers.run_submitit(main, jobs, command.out / "submitit", command.slurm, on_poll, log)


def _work(command: CommandLine, share: Share) -> int:
    """Computes points beside other workers, and logs problems only; returns the code of the signal that stopped it."""
    if "SUBMITIT_EXECUTOR" not in os.environ:
        workers.take_cores(share)
        workers.stop_without_parent()
    phase = tuning_phase(command) if command.grid else None
    if command.phase != "tuning" or phase is None:
        choices = tuning.choose(phase.out, phase.points, command.grid.tuning) if phase and command.grid else {}
        phase = open_final(command, choices)
    sim.start_jax(phase.points[0].config)
    from fedvg_jax.study import sweeps

    _, stopped_by = sweeps.compute(_mine(command, phase), phase.out, retries=False)
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
                    line = f"report: {report.write([out], out / 'report').paths[-1]}"
            except UsageError as error:
                line, refusal = "no report", error
    console.print(line, highlight=False, soft_wrap=True, markup=False)
    return refusal


def _show_plan(command: CommandLine, console: Console) -> int:
    """Lists unfinished points and their programs, and estimates the time; writes only to the cache."""
    sim.start_jax(command.points.points[0].config)
    from fedvg_jax.study import sweeps
    from fedvg_jax.study.sweep_progress import duration

    def log(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    planned, final = [], Phase("final", command.out, command.points.points)
    for phase in [tuning_phase(command), final] if command.grid else [final]:
        groups = sweeps.by_program(phase.points)
        mine = workers.shard(groups, command.shard) if command.shard else phase.points
        planned += [(point, phase.is_done(point)) for point in mine]
    points = [point for point, is_done in planned if not is_done]
    num_done = len(planned) - len(points)
    done = f"; {num_done} of {count(len(planned))} finished" if num_done else ""
    if not points:
        log(f"nothing to compute{done}")
        return 0
    total = compiling = 0.0
    groups = sweeps.by_program(points)
    for i, group in enumerate(groups):
        with console.status(f"timing program {i + 1} of {len(groups)}"):
            seconds, compile_seconds = _estimate(group)
        total, compiling = total + seconds, compiling + compile_seconds
        log(f"program {i + 1}: {count(len(group))}, about {duration(seconds)}")
        for point in group:
            log(f"  {point.name}")
    work = f"{count(len(points))}, {count(len(groups), 'program')}"
    log(f"{work}: about {duration(total)}, and {duration(compiling)} of compiling{done}")
    return 0


def _estimate(group: Sequence[Point]) -> tuple[float, float]:
    """Returns the seconds that points of one program take, and those of compiling it.

    Points that differ in their seeds only are timed once.
    """
    from fedvg_jax.runs import simulation
    from fedvg_jax.views import dry_run

    counts = collections.Counter(dataclasses.replace(p.config, seed=0, partition_seed=0) for p in group)
    predictions = {config: dry_run.predict(simulation.simulation(config)) for config in counts}
    seconds = sum(predictions[config].seconds * count for config, count in counts.items())
    return seconds, sum(prediction.compile_seconds for prediction in predictions.values())


if __name__ == "__main__":
    run_and_exit(main)
