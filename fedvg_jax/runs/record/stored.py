"""The checkpoints of a run folder, by their names; their arrays are read by `checkpoint`.

RUN/checkpoints/000040     the state after round 40, with digests of its arrays and of the history up to that round
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container
from pathlib import Path
from typing import Any

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

CHECKPOINTS = "checkpoints"
UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix that Orbax gives a checkpoint until it is complete."""
HISTORY, SUMMARY = "history.jsonl", "summary.json"

STATE, ABOUT = "state", "about"
"""Parts of a checkpoint: its arrays; and JSON with its round, and the digests of the history and of the arrays."""


def about(path: Path) -> dict[str, Any]:
    """Returns what a checkpoint says of itself.

    Returns:
        `round`, its number; `history`, size and CRC-32; and `leaves`, path -> shape, dtype and CRC-32.

    Raises:
        UsageError: it is missing or damaged.
    """
    # where Orbax writes JSON; commands read it without Orbax
    return files.read_object(path / ABOUT / "metadata")


def is_run(path: Path) -> bool:
    """Returns whether a path is a run folder or one of its checkpoints, and not a file or folder of weights alone."""
    return is_checkpoint(path) or any(
        (path / name).exists() for name in (CHECKPOINTS, HISTORY, SUMMARY)
    )


def run_of(path: Path) -> Path:
    """Returns the run folder of a path that `is_run`: itself, or the run of a checkpoint.

    >>> run_of(Path("a"))
    PosixPath('a')
    """
    return path.resolve().parents[1] if is_checkpoint(path) else path


def is_checkpoint(path: Path) -> bool:
    """Returns whether a path is a checkpoint of a run."""
    return path.resolve().parent.name == CHECKPOINTS and (path / ABOUT).is_dir()


def checkpoint_path(run: Path, number: int) -> Path:
    """Returns the folder of a round's checkpoint."""
    return run / CHECKPOINTS / f"{number:06d}"


def checkpoints(run: Path) -> list[Path]:
    """Returns a run's checkpoints, oldest first; other files and folders beside them, such as copies, are none.

    Raises:
        UsageError: their folder cannot be read, so that it is unknown whether there are any.
    """
    try:
        paths = list((run / CHECKPOINTS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{run / CHECKPOINTS} cannot be read: {files.reason(error)}") from None
    return sorted((path for path in paths if _is_checkpoint(path)), key=lambda path: int(path.name))


def _is_checkpoint(path: Path) -> bool:
    """Returns whether a run has written a folder: it says that it is of the round that it is named for."""
    is_number = path.name.isdecimal() and path.name.isascii()
    if not is_number or not (path / ABOUT).is_dir():
        return False
    try:
        return path.name == str(about(path).get("round")).zfill(6)
    except UsageError:  # it is damaged, and `checkpoint.restore` tells the user
        return True


def remove_checkpoints(run: Path, kept: Container[Path] = ()) -> None:
    """Removes a run's checkpoints except `kept`, half-written ones, and their folder if nothing else is in it."""
    folder = run / CHECKPOINTS
    for path in (*checkpoints(run), *folder.glob(f"[0-9]*{UNFINISHED}*")):
        if path not in kept:
            shutil.rmtree(path)
    with contextlib.suppress(OSError):  # it is missing, or not empty
        folder.rmdir()


def newest_round(run: Path) -> int:
    """Returns the round of the newest checkpoint, 0 where there is none. It is not verified."""
    return max((int(path.name) for path in checkpoints(run)), default=0)
