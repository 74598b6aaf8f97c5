"""`python -m fedvg_jax.sweep`, or `fedvg sweep`: one run for every combination of settings, in one process.

Several values of an option make an axis, and all axes are crossed. A TOML file may have axes, too; see `config.axes`.
The same command continues a sweep that was stopped: finished points are skipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax import config as configs
from fedvg_jax import sim
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import Config, axes, presets, sweep_points
from fedvg_jax.config.axes import Axis
from fedvg_jax.config.sweep_points import Layer, Points, Sweep
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import stop_signals, sweep_folder, sweep_workers
from fedvg_jax.runs.sweep_workers import Share

if TYPE_CHECKING:
    from rich.console import Console

    from fedvg_jax.config.sweep_points import Point
    from fedvg_jax.runs.sweeps import Observers, SweepResult

PROG = "python -m fedvg_jax.sweep"

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
  --partition-seed follow
                         the partition is drawn with the seed of the run

Options of the sweep:
  --out DIR              folder of the sweep; the same command continues it
  --config FILE          TOML file of settings, with tables [axes] and [[zip]]
  --scale full|tiny      size of the file's sweep: as it stands, or with [tiny]
  --jobs N               processes that share the points, each with its cores
  --shard I/N            compute the I-th of N parts of the points only
  --executor submitit    the processes are jobs of SLURM, through submitit
  --slurm NAME=VALUE...  parameters of submitit's executor
  --dry-run              list points and programs, estimate time, train nothing

Options of a run: python -m fedvg_jax.sim --help"""

OWN = ("out", "config", "scale", "dry_run", "jobs", "shard", "executor")
"""Flags of the sweep itself with one value, or none."""

EXECUTION = ("executor", "slurm", "shard", "out", "worker")
"""Flags that a worker does not get as they are."""

EXECUTORS = ("processes", "submitit")

SHARED = ("cache_dir", "trust_cache", "deterministic")
"""Settings of the process, which all points share."""


class CommandLine(NamedTuple):
    """What a command line asks for."""

    sweep: Sweep
    points: Points
    out: Path
    dry_run: bool = False
    jobs: int = 1
    """processes"""
    shard: Share | None = None
    """the part of the points to compute; None for all"""
    slurm: dict[str, Any] | None = None
    """parameters of submitit's executor; None without it"""
    worker: Share | None = None
    """which process of another one's `jobs` this is"""
    words: tuple[str, ...] = ()
    """the command line of a worker, without its share"""


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
        return 0
    return sim.guarded(lambda: run(read_command_line(words)))


# --- parsing


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Returns the sweep that a command line asks for, with all its points checked.

    Raises:
        UsageError: for an option that cannot work at some point, or that no point uses.
    """
    flags = split_flags(argv)
    words = [
        word for name, values in flags.items() if name not in ("jobs", *EXECUTION) for word in _joined(name, values)
    ]
    own = {name: _single(name, flags.pop(name)) for name in (*OWN, "worker") if name in flags}
    slurm = sweep_workers.parse_options(flags.pop("slurm", []))
    file = axes.SweepFile({})
    if "config" in own:
        file = axes.read_file(Path(own["config"]), own.get("scale", "full"))
    elif "scale" in own:
        raise UsageError("--scale chooses a size of a sweep's file; give the file with --config")
    settings, crossed = typed_flags(flags)
    given = {*settings, *(axis.names[0] for axis in crossed)}
    all_axes = (*_without(file.axes, given), *crossed)
    for axis in all_axes:
        if shared := [name for name in axis.names if name in SHARED and len(axis.values) > 1]:
            raise UsageError(f"{shared[0]} is a setting of the whole process; give it one value")
    cache = {"cache_dir": configs.default_cache_dir()}
    layers = (
        Layer({**cache, "keep": 1}, "sweep"),
        Layer({name: value for name, value in file.settings.items() if name not in given}, str(own.get("config"))),
        Layer(settings, "command line"),
    )
    sweep = Sweep(all_axes, layers, title=file.title)
    points = sweep_points.make_points(sweep)
    out = Path(own["out"]) if "out" in own else default_folder(sweep, points)
    return CommandLine(
        sweep,
        points,
        out,
        "dry_run" in own,
        _num_jobs(own.get("jobs", "1")),
        sweep_workers.parse_share(own["shard"], "--shard") if "shard" in own else None,
        _executor_options(own.get("executor", "processes"), slurm),
        sweep_workers.parse_share(own["worker"], "--worker") if "worker" in own else None,
        (*words, f"--out={out}"),
    )


def _joined(name: str, values: Sequence[str]) -> list[str]:
    """Returns a flag as words of a command line."""
    flag = f"--{name.replace('_', '-')}"
    return [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]


def _num_jobs(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and int(text[:6]) >= 1 and len(text) < 6):
        raise UsageError(f"--jobs must be a number >= 1; got {text[:50]}")
    return int(text)


def _executor_options(name: str, slurm: dict[str, Any]) -> dict[str, Any] | None:
    if name not in EXECUTORS:
        raise UsageError(f"unknown executor {name[:100]!r}{configs.suggestion(name, EXECUTORS)}")
    if slurm and name != "submitit":
        raise UsageError("--slurm is for --executor submitit; add that, or leave --slurm out")
    return slurm if name == "submitit" else None


def split_flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """Returns the words behind every flag of a command line, by the flag's name; of equal flags the last counts.

    >>> split_flags(["--alpha", "0.05", "0.5", "--fedvg.norm=l2", "--dry-run"])
    {'alpha': ['0.05', '0.5'], 'fedvg.norm': ['l2'], 'dry_run': []}
    """
    flags: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            flag, is_joined, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            flags[name] = [value] if is_joined else []
        elif name:
            flags[name].append(word)
        else:
            raise UsageError(f"unknown argument {word[:100]}; {PROG} --help lists the options")
    return flags


def typed_flags(flags: dict[str, list[str]]) -> tuple[dict[str, Any], list[Axis]]:
    """Returns the settings of flags with one value, and the axes of those with several, in the types of the settings.

    Raises:
        UsageError: a flag is unknown, or a value is no value of its setting.
    """
    texts = {name: [str(v) for word in words for v in axes.seeds(name, word)] for name, words in flags.items()}
    columns: dict[str, list[Any]] = {name: [] for name in texts}
    for i in range(max(map(len, texts.values()), default=0) or 1):
        row = {name: words[i : i + 1] for name, words in texts.items() if i == 0 or i < len(words)}
        for name, value in _typed_row(row).items():
            columns.setdefault(name, []).append(value)
    columns = {name: values for name, values in columns.items() if values}
    settings = {name: values[0] for name, values in columns.items() if len(values) == 1}
    return settings, axes.cross({n: values for n, values in columns.items() if n not in settings}, "command line")


def _typed_row(row: dict[str, list[str]]) -> dict[str, Any]:
    """Returns the typed values of flags with at most one word each, by setting."""
    kept = {n: w[0] for n, w in row.items() if w and (n in presets.SHORTHANDS or w[0] == axes.FOLLOW)}
    if bare := [name for name, words in row.items() if not words and name in presets.SHORTHANDS]:
        raise UsageError(f"--{bare[0]} needs a name; allowed: {', '.join(presets.SHORTHANDS[bare[0]])}")
    others = [word for name, words in row.items() if name not in kept for word in _words(name, words)]
    flat = configs.flatten(sim.apply_flags(Config(), others, PROG))
    return {**kept, **{name: flat[name] for name in sim.given(others)}}


def _words(name: str, values: list[str]) -> list[str]:
    """Returns a flag as tyro reads it; that of a switch has its value in its name."""
    default = configs.flatten(Config()).get(name)
    if isinstance(default, bool) and [v.lower() for v in values] in (["true"], ["false"]):
        group, dot, last = name.rpartition(".")
        name, values = (name if values[0].lower() == "true" else f"{group}{dot}no_{last}"), []
    return [f"--{name.replace('_', '-')}", *values]


def _single(name: str, words: list[str]) -> str:
    """Returns the value of a flag of the sweep."""
    is_switch = name == "dry_run"
    if len(words) != (0 if is_switch else 1):
        expected = "no value" if is_switch else "one value"
        raise UsageError(f"--{name.replace('_', '-')} takes {expected}; got {' '.join(words)[:100] or 'none'}")
    return "" if is_switch else words[0]


def _without(file_axes: Sequence[Axis], given: set[str]) -> list[Axis]:
    """Returns the axes of a file that the command line does not replace."""
    for axis in file_axes:
        if len(axis.names) > 1 and (replaced := given & set(axis.names)):
            name = min(replaced)
            raise UsageError(
                f"--{name.replace('_', '-')} is zipped with {', '.join(axis.names)} in the file; edit that"
            )
    return [axis for axis in file_axes if axis.names[0] not in given]


def default_folder(sweep: Sweep, points: Points) -> Path:
    """Returns runs/sweep-DIGEST: equal sweeps have one folder, so that the same command continues its sweep."""
    text = json.dumps(sweep_folder.document(sweep, points), sort_keys=True)
    return Path("runs") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# --- running


def run(command: CommandLine) -> int:
    """Computes or plans the points of a sweep, shows them, and returns the exit code."""
    from rich.console import Console

    if command.worker:
        return _work(command, command.worker)
    console = Console()
    points = command.points.points
    for line in opening_lines(command):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    sweep_folder.check_sources(points)
    if command.dry_run:
        return _show_plan(points, console)
    sweep_folder.open_folder(command.out, sweep_folder.document(command.sweep, command.points), points)

    def stopped() -> str:
        return f"stopped at once; the same command continues the sweep in {command.out}"

    with stop_signals.ignore_save_requests(), stop_signals.say_at_once(stopped):
        try:
            return _compute(command, console, stopped)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(stopped()) from None


def opening_lines(command: CommandLine) -> list[str]:
    """Returns what is printed first: the size of the sweep, and combinations that repeat a point."""
    points, merged = command.points
    lengths = [f"{' and '.join(axis.names)} ({len(axis.values)})" for axis in command.sweep.axes]
    count = f"{len(points)} point{'s' * (len(points) != 1)}"
    lines = [f"sweep of {count}: {' x '.join(lengths) or 'nothing varies'}; folder {command.out}"]
    if merged:
        repeated, kept = next(iter(merged.items()))
        lines.append(f"{len(merged)} combinations repeat the settings of other points and are left out, such as")
        lines.append(f"  {repeated} = {kept}")
    return lines


def _compute(command: CommandLine, console: Console, stopped: Callable[[], str]) -> int:
    """Computes the points and prints the table; returns the exit code."""
    points, out = command.points.points, command.out
    has_workers = command.jobs > 1 or command.slurm is not None
    if not has_workers:
        sim.start_jax(points[0].config)
    from fedvg_jax.runs import sweeps
    from fedvg_jax.views import sweep_progress

    groups = sweeps.by_program(points)
    mine = sweep_workers.shard(groups, command.shard) if command.shard else [p for group in groups for p in group]
    mine.sort(key=lambda point: not _is_done(out, point))  # stable
    num_done = sum(_is_done(out, point) for point in mine)
    with sweep_progress.sweep_progress(console, mine, num_done, stopped) as observers:
        if has_workers:
            stopped_by = _share_out(command, mine[num_done:], observers)
        else:
            _, stopped_by = sweeps.compute(mine, out, observers)
    results = sweeps.load(points, out)
    console.print(sweep_progress.result_table(results, points, command.sweep.title))
    console.print(f"folder of the sweep: {out}", highlight=False, soft_wrap=True)
    if stopped_by:
        console.print("the same command continues the sweep", highlight=False)
        return stop_signals.exit_code(stopped_by)
    _draw_report(out)
    _refuse_unfinished(mine, results)
    return 0


def _share_out(command: CommandLine, points: Sequence[Point], observers: Observers) -> str | None:
    """Computes points in worker processes, or in jobs of submitit; returns the signal that stopped them."""
    out, pending = command.out, list(points)
    words = [*command.words, *([f"--shard={'/'.join(map(str, command.shard))}"] if command.shard else [])]

    def report_finished() -> None:
        from fedvg_jax.runs import sweeps

        for point in [point for point in pending if _is_done(out, point)]:
            pending.remove(point)
            observers.on_start(point)
            observers.on_records([{"round": point.config.rounds}])
            observers.on_end(point, sweeps.load([point], out)[0].result)

    if command.slurm is None:
        start = [sys.executable, "-m", "fedvg_jax.sweep", *words]
        return sweep_workers.run_local(start, command.jobs, report_finished)
    jobs = [[*words, f"--worker={i + 1}/{command.jobs}"] for i in range(command.jobs)]
    return sweep_workers.run_submitit(main, jobs, out / "submitit", command.slurm, report_finished, observers.log)


def _work(command: CommandLine, share: Share) -> int:
    """Computes points beside other workers, without a word; returns the exit code of the signal that stopped it."""
    if not sys.stdin.isatty() and "SUBMITIT_EXECUTOR" not in os.environ:
        sweep_workers.take_cores(share)
        sweep_workers.stop_without_parent()
    points = command.points.points
    sim.start_jax(points[0].config)
    from fedvg_jax.runs import sweeps

    groups = sweeps.by_program(points)
    if command.shard:
        groups = [[point] for point in sweep_workers.shard(groups, command.shard)]
    with stop_signals.ignore_save_requests():
        _, stopped_by = sweeps.compute(sweep_workers.own_first(groups, share), command.out)
    return stop_signals.exit_code(stopped_by) if stopped_by else 0


def _refuse_unfinished(points: Sequence[Point], results: Sequence[SweepResult]) -> None:
    """Raises UsageError for points that failed, or that a lost process left unfinished."""
    done = {result.name: result.result for result in results}
    failures = {
        name: r.reason for name, r in done.items() if isinstance(r, sweep_folder.Failure) and r.kind == "failed"
    }
    if failures:
        name, reason = next(iter(failures.items()))
        raise UsageError(f"{len(failures)} points failed, such as {name}: {reason}")
    if unfinished := [point.name for point in points if point.name not in done]:
        raise UsageError(
            f"{len(unfinished)} points are unfinished, such as {unfinished[0]}; the same command continues them"
        )


def _draw_report(out: Path) -> None:
    """Draws the report of a sweep, where this version has one."""
    if importlib.util.find_spec("fedvg_jax.views.report"):
        importlib.import_module("fedvg_jax.views.report").write([out], out / "report")


def _is_done(out: Path, point: Point) -> bool:
    return sweep_folder.is_done(sweep_folder.point_folder(out, point.name), point.config)


def _show_plan(points: Sequence[Point], console: Console) -> int:
    """Lists points and programs, and estimates the time; writes only to the cache."""
    sim.start_jax(points[0].config)
    from fedvg_jax.runs import simulation, sweeps
    from fedvg_jax.views import dry_run
    from fedvg_jax.views.sweep_progress import duration

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    total = compiling = 0.0
    groups = sweeps.by_program(points)
    for i, group in enumerate(groups):
        with console.status(f"timing program {i + 1} of {len(groups)}"):
            prediction = dry_run.predict(simulation.simulation(group[0].config))
        seconds = sum(prediction.seconds_per_round * point.config.rounds for point in group)
        overhead = prediction.seconds - prediction.seconds_per_round * prediction.rounds
        seconds += overhead * len(group)
        total, compiling = total + seconds, compiling + prediction.compile_seconds
        say(f"program {i + 1}: {len(group)} points, about {duration(seconds)}")
        for point in group:
            say(f"  {point.name}")
    say(
        f"{len(points)} points, {len(groups)} programs: about {duration(total)}, and {duration(compiling)} of compiling"
    )
    return 0


if __name__ == "__main__":
    run_and_exit(main)
