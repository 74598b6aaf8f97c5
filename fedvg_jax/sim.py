"""`python -m fedvg_jax.sim`: one federated run from the command line.

Settings come from the defaults, the data set's preset, the TOML file and the command line, each over the one before.
Two shorthands stand for several settings, which any flag still overrides, and may also be keys of the file:
`--method NAME`, the algorithm, weights and hyper-parameters of one of the paper's methods: fedavg, fedavgm, fedprox,
scaffold, feddyn, elastic, fedvg, or one of the six with +fedvg; and `--fidelity official`, what the published code does
where it departs from the papers (default: corrected).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax import config as configs
from fedvg_jax.config import Config, presets
from fedvg_jax.core import files, hardware
from fedvg_jax.core.types import UsageError, one_line
from fedvg_jax.runs import history, resume, seals, stop_signals
from fedvg_jax.views import output

if TYPE_CHECKING:
    from rich.console import Console

PROG = "python -m fedvg_jax.sim"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 for a finished run whose folder was changed; 2 for a usage error, told in one line; 129, 130 or
    143 after SIGHUP, Ctrl-C or SIGTERM."""
    return guarded(lambda: simulate(*read_command_line(sys.argv[1:] if argv is None else argv)))


def guarded(command: Callable[[], int], stopped: str = "stopped at once") -> int:
    """The exit code of a command, whatever ends it.

    Args:
        stopped: what to say after Ctrl-C, where the command says nothing itself.
    """
    with output.lasting():
        try:
            return command()
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return getattr(error, "exit_code", 2)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print("error: not enough memory; use a smaller --batch-size, --join-ratio or --model", file=sys.stderr)
            return 2
        except KeyboardInterrupt as stop:
            print(str(stop) or stopped, file=sys.stderr)
            return 130
        except OSError as error:
            print(f"error: {one_line(str(error))}", file=sys.stderr)
            return 2


def parse(argv: Sequence[str]) -> Config:
    """The resolved settings of a command line."""
    return read_command_line(argv).config


class CommandLine(NamedTuple):
    """What a command line asks for."""

    config: Config
    """resolved and checked"""
    unused: Sequence[str] = ()
    """settings of the TOML file that this run does not use"""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """The resolved settings of a command line.

    Raises:
        UsageError: for a setting that cannot work, and for a flag that this run does not use. A file may hold settings
            of other methods: files are shared by the runs of a sweep.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", type=Path, nargs="?")
    early.add_argument("--dataset", nargs="?")
    early.add_argument("--resume", nargs="?")
    known, _ = early.parse_known_args(argv)
    shorthands, argv = _take(argv)
    file = configs.read_toml(known.config) if known.config else {}
    going_on = known.resume or file.get("resume", resume.AUTO)
    dataset = known.dataset or file.get("dataset", Config.dataset)
    config = configs.apply(Config(), presets.of_dataset(str(dataset)), f"preset {dataset}")
    if isinstance(going_on, str) and going_on != resume.AUTO:  # that run's settings need not be repeated
        config = dataclasses.replace(history.read_config(Path(going_on)), out=Path(going_on), resume=going_on)
    in_file = {name: file.pop(name) for name in presets.SHORTHANDS if name in file}
    config = configs.apply(config, _meaning(in_file) | file, str(known.config))
    config = _from_flags(configs.apply(config, _meaning(shorthands), "shorthand"), argv)
    config = configs.check(dataclasses.replace(config, cache_dir=config.cache_dir or configs.default_cache_dir()))
    flags = given(argv)
    configs.refuse_unused(config, flags)
    return CommandLine(config, configs.unused(config, [name for name in file if name not in flags]))


def given(argv: Sequence[str]) -> list[str]:
    """The settings that are flags of a command line, whatever their values.

    >>> given(["--lr", "0.1", "--fedvg.norm=l2", "--no-dry-run"])
    ['lr', 'fedvg.norm', 'dry_run']
    """
    flags = {}
    for name in configs.flatten(Config()):
        group, dot, last = name.rpartition(".")
        flags |= {name: name, f"{group}{dot}no_{last}": name}
    words = (word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--"))
    return list(dict.fromkeys(flags[word] for word in words if word in flags))


def _take(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The shorthands among the flags, which stand for other settings; and the other flags."""
    parser = argparse.ArgumentParser(prog=PROG, add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in presets.SHORTHANDS:
        parser.add_argument(f"--{name}")
    try:
        known, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        name = error.argument_name.lstrip("-")
        raise UsageError(f"--{name} needs a name; allowed: {', '.join(presets.SHORTHANDS[name])}") from None
    return {name: value for name, value in vars(known).items() if value is not None}, rest


def _meaning(shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """The settings they stand for."""
    settings = {}
    for name, table in presets.SHORTHANDS.items():
        if name in shorthands:
            value = shorthands[name]
            if not isinstance(value, str) or value not in table:
                raise UsageError(f"unknown {name} {value!r}{configs.suggestion(str(value), table)}")
            settings |= table[value]
    return settings


def _from_flags(defaults: Config, argv: Sequence[str]) -> Config:
    """`defaults` under the command line's flags."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            config, unknown = tyro.cli(
                Config, default=defaults, args=list(argv), prog=PROG, description=__doc__, return_unknown_args=True
            )
    except SystemExit as stop:
        if stop.code:
            raise UsageError(_one_line(said.getvalue())) from None
        raise
    if unknown:
        name = unknown[0].lstrip("-").partition("=")[0]
        close = unknown[0].startswith("-") and configs.closest(name, [*configs.flatten(defaults), *presets.SHORTHANDS])
        hint = f"did you mean --{close.replace('_', '-')}?" if close else f"{PROG} --help lists all"
        raise UsageError(f"unknown argument {unknown[0][:100]}; {hint}")
    return config


def _one_line(box: str) -> str:
    """The message of tyro's error, which stands under a title and above a rule, boxed or not."""

    def is_rule(line: str) -> bool:
        return not line.strip("│─- ")

    under_title = itertools.dropwhile(is_rule, box.splitlines()[1:])
    message = itertools.takewhile(lambda line: not is_rule(line), under_title)
    return f"{' '.join(' '.join(message).replace('│', ' ').split())[:400]} ({PROG} --help)"


def simulate(config: Config, unused: Sequence[str] = ()) -> int:
    """Runs it, shows it, and leaves the run folder.

    Args:
        unused: settings of the TOML file to list as unused.
    """
    from rich.console import Console

    console = Console()

    def tell(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    if config.export:
        files.export_target(config.export)
    if config.dry_run:
        return _plan(config, console, unused)
    wanted, config = config.resume, resume.resolve(config)
    if config.resume:
        tell(f"going on with {config.out}")
    else:
        if wanted:
            tell("no run of these settings to go on with: a new one")
        config = dataclasses.replace(config, out=config.out or history.default_folder(config))
        history.refuse_taken(config.out)
    with stop_signals.ignore_save_requests(), _stopping(config.out):
        return _run(config, console, tell, unused)


@contextlib.contextmanager
def _stopping(out: Path) -> Iterator[None]:
    """Says what a run that is stopped at once leaves."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(exit_message(out)) from None


def exit_message(out: Path) -> str:
    """The line to leave with when a run is stopped at once."""
    if not out.is_dir():
        return f"stopped at once; there is no run folder {out}"
    done = seals.newest_round(out)
    saved = f"round {done} is saved" if done else "no round is saved yet"
    return f"stopped at once; {saved}: {PROG} --resume {out}"


def _run(config: Config, console: Console, tell: Callable[[str], None], unused: Sequence[str]) -> int:
    start_jax(config)
    from fedvg_jax.runs import loop, simulation
    from fedvg_jax.views import display

    with display.draws(console) as progress, display.reads(console) as reading:
        sim = simulation.simulation(config, progress=progress, reading=reading)
    console.print(display.start(sim, unused), highlight=False, soft_wrap=True, markup=False)
    with display.rounds(console, config.rounds) as show:
        finished = loop.run_simulation(sim, on_records=show, log=tell, exit_message=lambda: exit_message(config.out))
    if importlib.util.find_spec("matplotlib"):
        from fedvg_jax.views import plots

        plots.write(finished.folder, finished.records, config.clients)
    console.print(display.end(finished))
    if config.export:
        from fedvg_jax.models import pretrained

        pretrained.save(config.export, finished.variables, config.model)
        tell(f"model written to {config.export}")
    if not finished.summary["interrupted"]:
        return 0
    tell(f"go on with: {PROG} --resume {config.out}")
    return stop_signals.exit_code(finished.summary["stopped_by"])


def _plan(config: Config, console, unused: Sequence[str] = ()) -> int:
    """Shows what the run would take; leaves nothing but the compiled programs in the cache."""
    start_jax(config)
    from fedvg_jax.runs import simulation
    from fedvg_jax.views import display, dry_run, rounding

    with display.draws(console) as progress, display.reads(console) as reading:
        sim = simulation.simulation(config, progress=progress, reading=reading)
    console.print(display.start(sim, unused), highlight=False, soft_wrap=True, markup=False)
    with console.status("compiling, and timing a sample of each part"):
        prediction = dry_run.predict(sim)
        rounded = None if rounding.is_float32(config) else rounding.compare(sim, rounding.in_float32(sim))
    console.print(display.plan(prediction, rounded))
    return 0


def start_jax(config: Config) -> None:
    """The back end, every core of a CPU a device; and the cache that makes a second start fast, which also keeps what
    was tuned for a GPU.

    Raises:
        UsageError: there is no device, or the cache folder may hold what another user wrote.
    """
    files.private_folder(config.cache_dir, config.trust_cache)
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(hardware.num_cores()))
    if config.deterministic:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true".strip()
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked, said = os.environ.get("JAX_PLATFORMS", ""), " ".join(str(error).split())
        raise UsageError(f"jax finds no device (JAX_PLATFORMS={asked!r}): {said or 'none answers'}") from None
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(config.cache_dir / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    code = main()
    gc.freeze()  # else the interpreter looks through all that was traced for cycles before it goes: half a second
    sys.exit(code)
