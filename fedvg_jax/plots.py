"""`python -m fedvg_jax.plots RUN [RUN ...]`, or `fedvg plots`: draws the pictures of run folders again.

Reads config.json and history.jsonl of each folder, and writes accuracy.png (loss.png for a task without accuracy) and
weights.png into it. A run that is still going may be drawn, too.

--loss-plane [updates|random]
    computes the round after the newest checkpoint, and writes loss_plane.png, .pdf and .csv instead: the loss around
    the global model, on the plane of the two main directions of the clients' updates (or of two random directions,
    normalised by filter), with the clients' models and those that FedAvg, uniform weights and FedVG give.

Exit code 0, or 2 for an error, described in one line.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedvg_jax import sim
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError

PROG = "python -m fedvg_jax.plots"
PLANE = "--loss-plane"
DIRECTIONS = ("updates", "random")


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the folders that the command line names; returns the exit code.

    Args:
        argv: the arguments; by default those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    return sim.guarded(lambda: draw(*parse(words)), stopped="stopped")


class CommandLine(NamedTuple):
    """What a command line asks for."""

    folders: list[Path]
    loss_plane: str = ""
    """its directions; "" for the other pictures"""


def parse(argv: Sequence[str]) -> CommandLine:
    """Returns the run folders of a command line, and the directions of the loss plane.

    Raises:
        UsageError: there is no folder, or an unknown option.
    """
    folders: list[Path] = []
    directions, words = "", list(argv)
    while words:
        word = words.pop(0)
        name, _, value = word.partition("=")
        if name == PLANE:
            directions = value or (words.pop(0) if words and words[0] in DIRECTIONS else DIRECTIONS[0])
        elif word.startswith("-") or not word:
            raise UsageError(f"unknown argument {word[:100]}; usage: {PROG} RUN [RUN ...] [{PLANE}]")
        else:
            folders.append(Path(word))
    if directions and directions not in DIRECTIONS:
        raise UsageError(f"{PLANE} must be {' or '.join(DIRECTIONS)}; got {directions[:100]}")
    if not folders:
        raise UsageError(f"name the folder of a run: {PROG} RUN [RUN ...]")
    return CommandLine(folders, directions)


def draw(folders: Sequence[Path], loss_plane: str = "") -> int:
    """Draws the pictures of run folders, prints their paths, and returns the exit code.

    Args:
        folders: run folders.
        loss_plane: directions of the loss plane, which is drawn instead.

    Raises:
        UsageError: matplotlib is not installed, or a folder is not that of a run or does not serve for the plane.
    """
    from fedvg_jax.runs import history

    configs = [history.read_config(folder) for folder in folders]
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib; pip install 'fedvg_jax[plot]'")
    for folder, config in zip(folders, configs, strict=True):
        for path in _draw_plane(folder, config, loss_plane) if loss_plane else _draw_run(folder, config):
            print(path)
    return 0


def _draw_run(folder: Path, config: Config) -> list[Path]:
    from fedvg_jax.runs import history
    from fedvg_jax.views import plots

    return plots.write(folder, history.read(folder), config)


def _draw_plane(folder: Path, config: Config, directions: str) -> list[Path]:
    from fedvg_jax.runs import loss_plane
    from fedvg_jax.views import labels
    from fedvg_jax.views import loss_plane as picture

    plane = loss_plane.of_run(folder, directions=directions)
    updates = f"main directions of the updates: {plane.explained:.0%} of their squared length"
    directions = updates if plane.directions == "updates" else "random directions, normalised by filter"
    title = f"{labels.run_label(config)}\nround {plane.number}, {directions}"
    return picture.write(folder, plane, title)


if __name__ == "__main__":
    run_and_exit(main)
