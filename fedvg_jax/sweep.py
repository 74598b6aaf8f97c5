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
                         draws its own, as in a single run

Options of the sweep:
  --out DIR              folder of the sweep; the same command continues it
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
  --dry-run              list unfinished trials and programs, train nothing

Options of a run: python -m fedvg_jax.sim --help
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # ends the process amid its imports, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import functools
import hashlib
import importlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax import commands, config as configs
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.config.options import partition_seed
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files, hardware
from fedvg_jax.runs import endings
from fedvg_jax.study import executors, sweep_folder, sweep_trials, tuning
from fedvg_jax.study.sweep_folder import count
from fedvg_jax.study.sweep_trials import Axis, Layer, Sweep, Trial
from fedvg_jax.views import tracking
from fedvg_jax.views.output import say

if TYPE_CHECKING:
    from rich.console import Console

PROG = "python -m fedvg_jax.sweep"


class CommandLine(NamedTuple):
    """What a command line asks for."""

    plan: tuning.Plan
    out: Path
    """folder of the sweep"""
    dry_run: bool = False
    jobs: int | str = "auto"
    """see `executors.num_processes`"""
    executor: str = ""
    """MODULE:FUNCTION; "" for processes of this machine"""
    shard: tuple[int, int] = (1, 1)
    """see `executors.read_shard`"""


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
    """Computes or plans the trials of a sweep, shows them, and returns the exit code."""
    from rich.console import Console

    console, trials = Console(), command.plan.trials
    for line in opening_lines(command):
        say(console, line)
    sweep_folder.check_sources(trials)
    tracking.require(trials[0].config, has_folder=True)
    if command.dry_run:
        return _show_plan(command, console)
    log = functools.partial(say, console)
    try:
        with sweep_folder.shared(command.out, log, command.shard != (1, 1)) as can_share:
            trials = _compute(command, console, can_share)
    except executors.Stopped as stop:
        say(console, f"folder of the sweep: {command.out}; the same command continues the sweep")
        return endings.exit_code(stop.signal)
    return _show_results(command, trials, console)


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and of its tuning."""
    sweep, trials, _, tuned, runs = command.plan
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in sweep.axes]
    lines = [
        f"sweep of {count(len(trials))}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"
    ]
    seeds, partitions = {p.config.seed for p in trials}, {partition_seed(p.config) for p in trials}
    if len(seeds) > 1 and len(partitions) == 1:
        lines.append(f"all seeds share one partition (--partition-seed {min(partitions)})")
    if tuned:
        num_runs, seeds = count(len(runs)), count(len(tuned.seeds), "seed")
        lines.append(
            f"tuning {', '.join(tuned.settings)} first: {num_runs} with {seeds}, chosen on D_val"
        )
        if any(trial.config.dp.clip for trial in runs):
            lines.append("epsilon does not count the tuning runs, which see the same clients")
    return lines


def _compute(command: CommandLine, console: Console, can_share: bool) -> list[Trial]:
    """Computes what is left of a sweep; returns its trials, with the values that tuning has chosen.

    Raises:
        Stopped: by a signal.
        UsageError: some trial cannot work.
    """
    jobs = executors.num_processes(command.jobs, command.plan.pending, hardware.without_jax())
    jobs = jobs if can_share else 1
    if jobs == 1 and not command.executor:
        commands.start_jax()
    else:
        os.environ.update(executors.environment(jobs))  # before jax starts, if some check needs it
        commands.set_environment()
    executor = executors.named(command.executor) if command.executor else None
    with executors.opened(executor, jobs) as slots:
        from fedvg_jax.study import sweeps
        from fedvg_jax.study.trial_runs import Recipe

        work = sweeps.Work(Recipe(), None, command.shard, slots, _import_for_report)
        sweeps.check(command.plan.pending, work)
        return sweeps.compute_plan(command.plan, console, work)[0]


def _import_for_report() -> None:
    """Starts to import what the report needs, which takes seconds, while other processes compute the last trials."""

    def load() -> None:
        with contextlib.suppress(ImportError):
            for name in ("pandas", "scipy.stats", "matplotlib.figure"):
                importlib.import_module(name)

    threading.Thread(target=load, daemon=True).start()


def _show_results(command: CommandLine, trials: Sequence[Trial], console: Console) -> int:
    """Prints the table, writes the report, and returns the exit code.

    Raises:
        UsageError: a trial failed, or no study can be made of the trials.
    """
    from fedvg_jax.study import markup, report, tables
    from fedvg_jax.study.collect import collect

    is_whole = all(sweep_folder.is_done(command.out, trial) for trial in trials)
    if command.shard != (1, 1) and not is_whole:
        return _show_shard(command, trials, console)
    refusal = None
    try:
        if missing := report.missing_packages():
            say(
                console,
                f"no report: reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'",
            )
        else:
            study = collect([command.out], partial=True)
            console.print(
                markup.terminal(tables.accuracy(study, tables.options(study))), highlight=False
            )
            with console.status("writing the report"):
                written = report.write([command.out], command.out / "report")
            for line in (*written.findings, f"report: {written.paths[-1]}"):
                say(console, line)
    except UsageError as error:  # no trial is finished, or no study can be made of the trials
        refusal = error
    say(console, f"folder of the sweep: {command.out}")
    sweep_folder.refuse_unfinished(command.out, trials)
    if refusal:
        raise refusal
    return 0


def _show_shard(command: CommandLine, trials: Sequence[Trial], console: Console) -> int:
    """Says that a part of the sweep is computed, and returns the exit code; the last part writes the report.

    Raises:
        UsageError: a trial of the part failed.
    """
    from fedvg_jax.study import sweeps

    mine = sweeps.of_shard(trials, command.shard)
    number, of = command.shard
    say(console, f"shard {number}/{of}: {count(len(mine))} of {len(trials)}; folder {command.out}")
    sweep_folder.refuse_unfinished(command.out, mine)
    return 0


def _show_plan(command: CommandLine, console: Console) -> int:
    """Lists unfinished trials and their programs; writes nothing."""
    from fedvg_jax.study import sweeps

    trials, num_planned = command.plan.pending, len(command.plan.every)
    num_done = num_planned - len(trials)
    done = f"; {num_done} of {count(num_planned)} finished" if num_done else ""
    if not trials:
        say(console, f"nothing to compute{done}")
        return 0
    groups = sweeps.by_program(trials)
    for i, group in enumerate(groups.values()):
        say(console, f"program {i + 1}: {count(len(group))}")
        for trial in group:
            say(console, f"  {trial.name}")
    say(console, f"{count(len(trials))}, {count(len(groups), 'program')}{done}")
    return 0


# --- the command line


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Returns the sweep that a command line asks for, with all its trials checked.

    Raises:
        UsageError: for an option that cannot work at some trial, or that no trial uses.
    """
    options, flags = split_flags(argv)
    grid = {name.replace("-", "_"): words for name, *words in options.get("tune", ())}
    for name, words in grid.items():
        sweep_trials.check_name(name, "--tune")
        grid[name] = _typed_list(name, words)
    seeds = _typed_list("seed", options["tune_seeds"]) if "tune_seeds" in options else None
    file = (
        sweep_trials.read_file(options["config"])
        if "config" in options
        else sweep_trials.SweepFile({})
    )
    sweep = make_sweep(flags, file, str(options.get("config")))
    # words may tune a setting of the file
    in_file, in_words = (layer.settings.keys() for layer in sweep.layers[-2:])
    if both := sorted((in_words & {*file.tune, *grid}) | (in_file & file.tune.keys())):
        raise UsageError(f"{both[0]} has a value and is in --tune; leave one of the two out")
    seeds = file.tune_seeds if seeds is None else seeds
    tuned = tuning.make_tuning({**file.tune, **grid}, seeds, options.get("tune_metric"))
    plan = tuning.make_plan(sweep, None, tuned)
    if "executor" in options and "jobs" in options:
        raise UsageError("--jobs has no effect beside --executor; leave one of the two out")
    out, jobs = options.get("out") or default_folder(plan), options.get("jobs", "auto")
    return CommandLine(
        plan._replace(out=out),
        out,
        "dry_run" in options,
        int(jobs) if jobs.isdecimal() else jobs,
        options.get("executor", ""),
        executors.read_shard(options.get("shard")),
    )


def make_sweep(flags: dict[str, list[str]], file: sweep_trials.SweepFile, source: str) -> Sweep:
    """Returns the sweep of a file and of the flags that are settings, which override the file.

    Args:
        flags: words by name; see `split_flags`.
        file: its content.
        source: its name, for messages.
    """
    columns = {name: _typed_list(name, words) for name, words in flags.items()}
    settings = {name: values[0] for name, values in columns.items() if len(values) == 1}
    crossed = sweep_trials.cross(
        {name: values for name, values in columns.items() if len(values) != 1}, "command line"
    )
    given = {*settings, *(axis.names[0] for axis in crossed)}
    kept = _without(file.axes, given)
    meant = [
        configs.meaning(dict(zip(axis.names, row, strict=True)))
        for axis in kept
        for row in axis.values
    ]
    # the file's settings win beside a shorthand on its axes, as they do beside a single one
    beside = {
        name: value
        for name, value in file.settings.items()
        if any(name in several for several in meant)
    }
    layers = (
        Layer({"keep": 1}, "sweep"),
        Layer({name: value for name, value in file.settings.items() if name not in given}, source),
        Layer(beside | settings, "command line"),
    )
    return Sweep((*kept, *crossed), layers, title=file.title)


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
    command_line.add_settings(parser, nargs="*", action="append")
    found = command_line.read_words(parser, others)
    if repeated := next((name for name, several in found.items() if len(several) > 1), None):
        raise UsageError(
            f"{command_line.flag_of(repeated)} is given twice; give it once, with all its values"
        )
    return vars(options), {name: several[0] for name, several in found.items()}


def _typed_list(name: str, words: Sequence[str]) -> list[Any]:
    """Returns the typed values of one setting."""
    if not words:
        raise UsageError(f"{name} needs a value")
    listed = [str(value) for word in words for value in sweep_trials.seeds(name, word)]
    return [command_line.value_of(name, word) for word in listed]


def _without(file_axes: Sequence[Axis], given: set[str]) -> list[Axis]:
    """Returns the axes of a file that the command line does not replace."""
    for axis in file_axes:
        if len(axis.names) > 1 and (replaced := given & set(axis.names)):
            name = min(replaced)
            raise UsageError(
                f"--{name.replace('_', '-')} is in a [[zip]] of the file ({', '.join(axis.names)}); change it there"
            )
    return [axis for axis in file_axes if axis.names[0] not in given]


def default_folder(plan: tuning.Plan) -> Path:
    """Returns runs/sweep-DIGEST: equal sweeps have one folder, so that the same command continues its sweep."""
    content = sweep_folder.document(plan.sweep, plan.trials)
    text = json.dumps([content, repr(plan.tuning)], sort_keys=True)
    return Path("runs") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    run_and_exit(main)
