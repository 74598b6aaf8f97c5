"""What the commands share: help, errors in one line, settings from flags and files, run folders, and the start of jax.

Settings come from the defaults, the preset of the data set, the TOML file and the command line; each overrides the ones
before it. `--method` and `--fidelity` are shorthands for several settings, which any flag overrides. They may also be
keys of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from fedvg_jax import config as configs
from fedvg_jax.config import Config, command_line
from fedvg_jax.host import files, hardware
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.views import output

RUN = "python -m fedvg_jax.sim"
"""The command that trains one model; the others take its flags."""


def draw_run(history: History, log: output.Log) -> list[Path]:
    """Draws the pictures of a run into its folder, or logs which packages that needs; returns their paths."""
    if not all(importlib.util.find_spec(name) for name in ("matplotlib", "pandas")):
        log("no pictures: they need matplotlib and pandas; pip install 'fedvg_jax[plot]'")
        return []
    from fedvg_jax.study import figures

    return figures.draw_run(history) if history.records else []


def print_help(
    argv: Sequence[str],
    command: str,
    purpose: str,
    examples: str,
    names: Collection[str] = (*command_line.ALL, *command_line.OF_COMMAND),
) -> bool:
    """Prints the help that a command line asks for; returns whether it asks for one.

    Args:
        argv: the arguments.
        command: as it is typed.
        purpose: what the command does, in a sentence.
        examples: indented command lines.
        names: settings, shorthands and options that the command uses.
    """
    is_asked = bool({"-h", "--help"} & {*argv})
    if is_asked:
        print(command_line.help_text(command, purpose, examples, names))
    return is_asked


def guarded(command: Callable[[], int]) -> int:
    """Returns the exit code of a command; errors and stops are reported in one line."""
    with output.lasting():
        try:
            return command()
        except KeyboardInterrupt:
            line, code = "stopped at once", 130
        except (UsageError, OSError) as error:
            line, code = f"error: {one_line(str(error))}", 2
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            advice = "use a smaller --batch-size, --join-ratio or --model"
            line, code = f"error: not enough memory; {advice}", 2
        print(line, file=sys.stderr)
        return code


def parse(argv: Sequence[str]) -> Config:
    """Returns the resolved settings of a command line."""
    return read_command_line(argv).config


class CommandLine(NamedTuple):
    """What a command line asks for."""

    config: Config
    """The resolved settings."""
    unused: str
    """Settings of its file that the run does not use, with the name of the file; empty without any."""
    is_dry: bool
    """Whether to plan the run only."""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Returns what a command line asks for.

    Raises:
        UsageError: for a setting that cannot work, and for a flag that the run does not use. A file may hold settings
            of other methods, because the runs of a sweep share it.
    """
    values = command_line.parse(argv, RUN)
    is_dry, path = values.pop("dry_run", False), values.pop("config", None)
    file = configs.read_toml(path) if path else {}
    if any(name.startswith(("axes.", "zip", "tune.")) for name in file):
        raise UsageError(f"{path} is the file of a sweep; give it to python -m fedvg_jax.sweep")
    start = None
    resumed = values.get("resume") or file.get("resume", run_folder.AUTO)
    if isinstance(resumed, str) and resumed != run_folder.AUTO:
        # the settings of that run need not be repeated
        folder = files.user_path(resumed)
        stored = run_folder.read_config(folder)
        start = dataclasses.replace(stored, out=folder, resume=resumed)
    config = configs.check(configs.layered([(file, str(path)), (values, "command line")], start))
    configs.refuse_unused(config, values)
    unused = configs.unused(config, [name for name in file if name not in values])
    return CommandLine(config, f"{', '.join(unused)} of {path}" if unused else "", is_dry)


def set_environment() -> None:
    """Sets what jax reads when its back end starts: every CPU core is a device, unless the environment says it."""
    import jax

    is_set = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if not is_set:
        # of a caller's process, in which the back end has started
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", hardware.num_cores())


def start_jax() -> None:
    """Starts jax with every CPU core as a device; raises UsageError if there is none."""
    set_environment()
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platforms, reason = os.environ.get("JAX_PLATFORMS", ""), " ".join(str(error).split())
        raise UsageError(
            f"jax finds no device (JAX_PLATFORMS={platforms!r}): {reason or 'no back end'}"
        ) from None
