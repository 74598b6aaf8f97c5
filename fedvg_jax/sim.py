"""`python -m fedvg_jax.sim`, or `fedvg sim`: one federated run from the command line."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # ends the process amid its imports, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import dataclasses
import functools
import gc
import importlib
import shlex
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import Config
from fedvg_jax.host import hardware
from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.views import output

if TYPE_CHECKING:
    from rich.console import Console

PURPOSE = "Trains one federated model and writes a run folder: settings, one record per round, checkpoints, results."

EXAMPLES = f"""  {commands.RUN} --alpha 0.05
  {commands.RUN} --method fedprox+fedvg --rounds 50 --out runs/prox
  {commands.RUN} --config configs/cifar10_lenet5.toml --data-dir DIR"""


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Args:
        argv: the arguments.

    Returns:
        The exit code: 0; 2 for an error, described in one line; 3 where another process of the run was lost; 129, 130
        or 143 after SIGHUP, SIGINT or SIGTERM.
    """
    if commands.print_help(argv, commands.RUN, PURPOSE, EXAMPLES):
        from fedvg_jax.runs import launch

        print(f"\n{launch.HELP}")
        return 0
    return commands.guarded(lambda: _run_command(argv))


def _run_command(words: Sequence[str]) -> int:
    """Runs a command line in this process, or in each of several; returns the exit code."""
    if not any(word.startswith(("--distributed", "--process")) for word in words):
        config, unused, is_dry = commands.read_command_line(words)
        commands.set_environment()
        return simulate(config, unused, is_dry)
    from fedvg_jax.runs import launch

    processes, others = launch.read(words)
    config, unused, is_dry = commands.read_command_line(others)
    if is_dry or processes is None:
        raise UsageError("dry_run plans the run of one process; leave out --distributed")
    commands.set_environment()
    return launch.run(processes, lambda: simulate(config, unused))


# --- running


def simulate(config: Config, unused: str = "", is_dry: bool = False) -> int:
    """Runs or plans a simulation, shows it, and returns the exit code.

    Args:
        config, unused, is_dry: as `read_command_line` returns them.
    """
    from rich.console import Console

    from fedvg_jax.host import processes

    console = Console(quiet=not processes.is_first())
    log = functools.partial(output.say, console)
    with processes.together():
        output.check_targets(config.export, config.track, has_folder=True)
    if is_dry:
        return _show_plan(config, console, unused)
    named_folder = config.out
    config = run_folder.choose_folder(config, functools.partial(_choose_folder, log=log))
    try:
        return _train(config, console, log, unused)
    finally:
        if config.out and not named_folder:
            run_folder.remove_unused(config.out)


def _choose_folder(config: Config, log: output.Log) -> Config:
    """Returns the settings with the folder of a new run, or of the run to resume.

    Args:
        config: of the command line.
        log: called with a line about the run to resume.
    """
    wants_resume, config = config.resume, run_folder.settings_to_resume(config)
    if config.resume:
        log(f"resuming {config.out}")
        return config
    if wants_resume:
        log("no run with these settings to resume; starting a new one")
    if config.out is not None:
        run_folder.refuse_taken(config.out)
        return config
    return dataclasses.replace(config, out=run_folder.reserve_folder(config))


def _train(config: Config, console: Console, log: output.Log, unused: str) -> int:
    """Trains, draws and exports; returns the exit code."""
    from fedvg_jax.host import processes

    with contextlib.ExitStack() as starting:
        starting.enter_context(hardware.paused_gc())
        starting.callback(gc.freeze)  # what the start leaves lives as long as the process
        with processes.together():
            commands.start_jax()
        from fedvg_jax.resolve import experiment as experiments
        from fedvg_jax.resolve.custom import Custom
        from fedvg_jax.views import display

        loading = threading.Thread(target=_load_figures, daemon=True)

        def on_chunk_done() -> None:
            starting.close()
            if processes.is_first() and not loading.ident:
                loading.start()  # while the device works

        make = functools.partial(experiments.simulate, config, Custom())
        finished = display.run(console, make, unused, on_chunk_done=on_chunk_done)
    stopped_by = finished.summary["stopped_by"]
    if processes.is_first():
        if config.export:
            log(f"model written to {config.export}")
        commands.draw_run(finished, log)
        if stopped_by:
            log(f"resume with: {commands.RUN} --resume {shlex.quote(str(finished.folder))}")
    return endings.exit_code(stopped_by) if stopped_by else 0


def _load_figures() -> None:
    """Imports what draws the pictures of a run, which takes half a second."""
    with contextlib.suppress(ImportError):
        for name in ("pandas", "matplotlib.figure", "matplotlib.backends.backend_agg"):
            importlib.import_module(name)


def _show_plan(config: Config, console: Console, unused: str) -> int:
    """Shows what a new run would take. It writes only to the cache, which the real run reuses."""
    if config.resume:
        raise UsageError("dry_run plans a new run; leave out --resume")
    commands.start_jax()
    from fedvg_jax.resolve import experiment as experiments
    from fedvg_jax.resolve.custom import Custom
    from fedvg_jax.views import display, virtual_plan

    sim = display.prepare(console, lambda: experiments.simulate(config, Custom()), unused)
    with console.status("compiling, and timing two rounds"):
        plan = display.plan_rows(sim)
    display.print_table(console, plan | virtual_plan.rows(sim), "plan")
    if sim.timeline:
        most_stale = sim.experiment.cohorts.max_staleness
        output.say(console, virtual_plan.picture(sim.timeline, most_stale))
    return 0


if __name__ == "__main__":
    run_and_exit(main)
