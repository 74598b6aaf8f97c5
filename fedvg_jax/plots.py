"""`python -m fedvg_jax.plots RUN [RUN ...]`, or `fedvg plots`: draws the pictures of run folders again.

Reads config.json and history.jsonl of each folder, and writes accuracy.png (loss.png for a task without accuracy) and
weights.png into it. A run that is still going may be drawn, too.

Exit code 0, or 2 for an error, described in one line.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config.command_line import parse_runs
from fedvg_jax.core.types import UsageError

PROG = "python -m fedvg_jax.plots"


def main(argv: Sequence[str]) -> int:
    """Draws the folders that the command line names; returns the exit code.

    Args:
        argv: the arguments.
    """
    return commands.guarded(lambda: draw(parse_runs(argv, PROG, __doc__)))


def draw(folders: Sequence[Path]) -> int:
    """Draws the pictures of run folders, prints their paths, and returns the exit code.

    Raises:
        UsageError: matplotlib is not installed, or a folder is not that of a run.
    """
    from fedvg_jax.runs.record import folder as run_folder
    from fedvg_jax.runs.record import history

    configs = [run_folder.read_config(folder) for folder in folders]
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib; pip install 'fedvg_jax[plot]'")
    from fedvg_jax.views import plots

    for folder, config in zip(folders, configs, strict=True):
        for path in plots.write(folder, history.read(folder), config):
            print(path)
    return 0


if __name__ == "__main__":
    run_and_exit(main)
