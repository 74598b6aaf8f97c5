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
  --weighting NAME...    beside a method, native is the method's weighting
  --alpha FLOAT...       Dirichlet concentrations
  --seed A:B | INT...    seeds A to B-1, or seeds one by one
  --partition-seed INT   one partition for all seeds; by default every seed
                         draws its own, as in a single run

Options of the sweep:
  --out DIR              folder of the sweep, by default runs/sweep; the same
                         command continues it
  --config FILE          TOML file of settings, with tables [axes] and [[zip]]
  --tune NAME VALUE...   chooses the value of a setting on D_val, for every
                         method and alpha; may be given several times
  --tune-seeds A:B       seeds of the tuning runs (1000:1002)
  --tune-metric NAME     metric on D_val that chooses: accuracy, loss,
                         balanced_accuracy or macro_f1
  --jobs N               processes that share the trials, each with its cores;
                         auto: one per core, where trials use one core each
  --executor MODULE:FUNCTION
                         computes the trials on the concurrent.futures.Executor
                         that the function returns
  --shard I/N            part of the trials that this command computes; by
                         default that of the task of a Slurm array
  --dry-run              list unfinished trials, train nothing

Options of a run: python -m fedvg_jax.sim --help
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # ends the process amid its imports, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import functools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs import endings
from fedvg_jax.study import executors, sweep_folder, sweep_trials, tuning
from fedvg_jax.study.sweep_folder import count
from fedvg_jax.study.sweep_trials import Layer, Sweep, Trial
from fedvg_jax.views.output import Log, say

PROG = "python -m fedvg_jax.sweep"


class CommandLine(NamedTuple):
    """What a command line asks for."""

    plan: tuning.Plan
    out: Path
    """folder of the sweep"""
    is_dry: bool
    jobs: str
    """see `executors.num_processes`"""
    executor: str | None
    """MODULE:FUNCTION; None for processes of this machine"""
    shard: str
    """see `executors.of_shard`"""


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Args:
        argv: the arguments.

    Returns:
        The exit code: 0 if no trial failed; 2 for an error, described in one line; 129, 130 or 143 after SIGHUP, SIGINT
        or SIGTERM.
    """
    if {"-h", "--help"} & {*argv}:
        print(__doc__, end="")
        return 0
    return commands.guarded(lambda: run(read_command_line(argv)))


def run(command: CommandLine) -> int:
    """Computes or lists the trials of a sweep, shows their results, and returns the exit code."""
    from rich.console import Console

    log, plan = functools.partial(say, Console()), command.plan
    tuned = f" and {count(len(plan.tuning_trials), 'tuning run')}" if plan.tuning else ""
    log(f"sweep of {count(len(plan.trials))}{tuned}; folder {command.out}")
    if command.is_dry:
        pending = plan.pending
        for trial in pending:
            log(trial.name)
        log(f"not finished: {count(len(pending))}")
        return 0
    try:
        trials = _compute(command, log)
    except executors.Stopped as stop:
        log(f"folder of the sweep: {command.out}; the same command continues the sweep")
        return endings.exit_code(str(stop))
    return _show_results(command, trials, log)


def _compute(command: CommandLine, log: Log) -> list[Trial]:
    """Computes what is left of a sweep; returns its trials, with the values that tuning has chosen."""
    jobs = executors.num_processes(command.jobs, command.plan.pending)
    if jobs == 1 and command.executor is None:
        commands.start_jax()
    else:
        os.environ.update(executors.environment(jobs))  # before jax starts, if some check needs it
    executor = None if command.executor is None else executors.named(command.executor)
    with executors.opened(executor, jobs) as slots:
        from fedvg_jax.study import sweeps
        from fedvg_jax.study.trial_runs import Recipe

        work = sweeps.Work(Recipe(), command.shard, slots, log, log)
        return [*sweeps.compute_plan(command.plan, work)[0].trials.values()]


def _show_results(command: CommandLine, trials: Sequence[Trial], log: Log) -> int:
    """Prints the table, writes the report, and returns the exit code; that of a part only if all parts are finished.

    Raises:
        UsageError: a trial failed, or no study can be made of the trials.
    """
    left = sweep_folder.pending(command.out, trials)
    if left and command.shard != "1/1":
        log(f"{count(len(left))} of {len(trials)} are left; folder {command.out}")
        trials = executors.of_shard(trials, command.shard)
    else:
        log(f"folder of the sweep: {command.out}")
        with contextlib.suppress(UsageError) if left else contextlib.nullcontext():
            _report(command.out, log)
    sweep_folder.refuse_unfinished(command.out, trials)
    return 0


def _report(out: Path, log: Log) -> None:
    """Prints the table of a sweep, and writes its report."""
    from fedvg_jax.study import report, tables
    from fedvg_jax.study.collect import collect

    try:
        report.check_packages()
    except UsageError as error:
        log(f"no report: {error}")
        return
    study = tables.comparing(collect([out]))
    table = tables.accuracy(study)
    command = f"python -m fedvg_jax.report {shlex.quote(str(out))}"
    written = report.make_report(study, out / "report", command)
    shown = (table.title, table.shown.to_string(index=False), *table.notes)
    for line in (*shown, *written.ending):
        log(line)


# --- the command line


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Returns the sweep that a command line asks for, with all its trials checked.

    Raises:
        UsageError: for an option that cannot work at some trial, or that no trial uses.
    """
    options, flags = split_flags(argv)
    path = options.get("config")
    file = sweep_trials.read_file(path) if path else sweep_trials.SweepFile()
    sweep = make_sweep(flags, file)
    grid = dict(file.tune)
    for flag, *words in options.get("tune", ()):
        name = flag.replace("-", "_")
        grid[name] = _typed_list(name, words)
    seeds = file.tune_seeds
    if "tune_seeds" in options:
        seeds = _typed_list("seed", options["tune_seeds"])
    tuned = tuning.make_tuning(grid, seeds, options.get("tune_metric"))
    out = options.get("out", Path("runs/sweep"))
    plan = tuning.make_plan(sweep, out, tuned)
    if "executor" in options and "jobs" in options:
        raise UsageError("--jobs has no effect beside --executor; leave one of the two out")
    shard = options["shard"] if "shard" in options else executors.default_shard()
    executors.of_shard(plan.trials, shard)  # refuses what is no part
    jobs, executor = options.get("jobs", "auto"), options.get("executor")
    return CommandLine(plan, out, "dry_run" in options, jobs, executor, shard)


def make_sweep(flags: dict[str, list[str]], file: sweep_trials.SweepFile) -> Sweep:
    """Returns the sweep of a file and of the flags that are settings, which override the file.

    Args:
        flags: words by name; see `split_flags`.
        file: its content.
    """
    several, settings = {}, {}
    for name, words in flags.items():
        values = _typed_list(name, words)
        if len(values) == 1:
            (settings[name],) = values
        else:
            several[name] = values
    kept = [axis for axis in file.layer.axes if not {*axis.names} <= flags.keys()]
    of_file = {name: value for name, value in file.layer.settings.items() if name not in flags}
    layers = (
        Layer(settings={"keep": 1}, source="sweep"),
        Layer(tuple(kept), of_file, file.layer.source),
        Layer(sweep_trials.parse_axes(several, "command line"), settings, "command line"),
    )
    return Sweep(layers, title=file.title)


def split_flags(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns the options of the sweep itself, and the words behind every flag of a setting, by name.

    Raises:
        UsageError: a word stands before all flags, a flag is unknown or lacks its value, or that of a setting is given
            twice.

    >>> split_flags(["--alpha", "0.05", "0.5", "--fedvg.norm=l2", "--dry-run", "--tune", "lr", "0.1"])
    ({'dry_run': True, 'tune': [['lr', '0.1']]}, {'alpha': ['0.05', '0.5'], 'fedvg.norm': ['l2']})
    """
    parser = command_line.Parser(PROG)
    for name in ("--out", "--config"):
        parser.add_argument(name, type=files.user_path)
    parser.add_argument("--dry-run", action="store_true")
    for name in ("--jobs", "--executor", "--shard", "--tune-metric"):
        parser.add_argument(name)
    parser.add_argument("--tune", nargs="+", action="append")
    parser.add_argument("--tune-seeds", nargs="+")
    options, others = parser.parse_known_args(argv)
    parser = command_line.Parser(PROG)
    command_line.add_settings(parser, nargs="*", action="extend")
    return vars(options), command_line.read_words(parser, others)


def _typed_list(name: str, words: Sequence[str]) -> list[Any]:
    """Returns the typed values of one setting."""
    if not words:
        raise UsageError(f"{name} needs a value")
    listed = [str(value) for word in words for value in sweep_trials.seeds(name, word)]
    return [command_line.value_of(name, word) for word in listed]


if __name__ == "__main__":
    run_and_exit(main)
