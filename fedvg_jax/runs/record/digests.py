"""Digests that show whether the files of a run folder are as its run wrote them, and the checkpoints that have them.

RUN/digests.json           of the files that describe the run, written after its summary
RUN/checkpoints/000040     has digests of the history up to that round, of `DOCUMENTS`, and of its arrays

They detect accidental changes, not tampering.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import scaling
from fedvg_jax.host import files

FILE = "digests.json"
CHECKPOINTS = "checkpoints"
UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix that Orbax gives a checkpoint until it is complete."""
HISTORY = "history.jsonl"

STATE, ABOUT = "state", "about"
"""Parts of a checkpoint: its arrays; and JSON with its round, and the digests of files and of arrays."""

DOCUMENTS = ("layers.json", "partition.json", scaling.FILE)
"""Files that describe what a run was computed from, and that stay as they were written."""

OF_RUN = (*DOCUMENTS, HISTORY, "config.json", "manifest.json", "summary.json")
"""Files that a finished run has digests of."""

Digest = list[int]
"""Size in bytes and CRC-32."""


def extended(digest: Digest, data: bytes) -> Digest:
    """Returns the digest of a text after more bytes.

    >>> extended(extended([0, 0], b"a"), b"b") == extended([0, 0], b"ab")
    True
    """
    return [digest[0] + len(data), zlib.crc32(data, digest[1])]


def of_files(folder: Path, names: Iterable[str]) -> dict[str, Digest]:
    """Returns the digests of the files, without missing ones."""
    paths = [path for name in names if (path := folder / name).exists()]
    return {path.name: extended([0, 0], path.read_bytes()) for path in paths}


def write(folder: Path, of_run: Mapping[str, Digest]) -> None:
    """Writes the digests of the files of a run."""
    files.replace(folder / FILE, json.dumps(dict(of_run)))


def about(path: Path) -> dict[str, Any]:
    """Returns what a checkpoint says of itself.

    Returns:
        `round`, its number; the digests of `files` of the run; and `leaves`, path -> shape, dtype and CRC-32.

    Raises:
        UsageError: it is missing or damaged.
    """
    # where Orbax writes JSON; commands read it without Orbax
    return files.read_object(path / ABOUT / "metadata")


def check(run: Path) -> list[str]:
    """Returns a line for each file of a run folder that is not as the run wrote it.

    Lines of the history behind those that have a digest are not compared, and arrays neither: `checkpoint.check` does.
    Damaged checkpoints are left out: a resumed run skips them.
    """
    of_run = files.read_object_if_any(run / FILE)
    if any(not isinstance(digest, list) or len(digest) != 2 for digest in of_run.values()):
        return [f"{run / FILE} is damaged: it holds no digests"]
    wanted = list(of_run.items())
    for path in checkpoints(run):
        with contextlib.suppress(Exception):  # damaged bytes may raise anything
            wanted += about(path)["files"].items()
    changed = [
        f"{name} is not as its run left it"
        for name, digest in wanted
        if not _fits(run / name, digest)
    ]
    return list(dict.fromkeys(changed))


def _fits(path: Path, digest: Digest) -> bool:
    """Returns whether a file has a digest; a history may be longer."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return extended([0, 0], text[: digest[0]] if path.name == HISTORY else text) == digest


# --- the checkpoints of a run


def is_run(path: Path) -> bool:
    """Returns whether a path is a run folder or one of its checkpoints, and not a file or folder of weights alone."""
    return is_checkpoint(path) or any(
        (path / name).exists() for name in (CHECKPOINTS, FILE, HISTORY)
    )


def run_of(path: Path) -> Path:
    """Returns the run folder of a path that `is_run`: itself, or that of a checkpoint.

    >>> run_of(Path("/runs/a/checkpoints/000040")), run_of(Path("a"))
    (PosixPath('/runs/a'), PosixPath('a'))
    """
    return path.resolve().parents[1] if is_checkpoint(path) else path


def is_checkpoint(path: Path) -> bool:
    """Returns whether a path is that of a checkpoint of a run."""
    return (
        path.resolve().parent.name == CHECKPOINTS
        and not path.is_file()
        and not (path / HISTORY).exists()
    )


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
    unfinished = [
        path
        for path in folder.glob(f"*{UNFINISHED}*")
        if path.name.partition(UNFINISHED)[0].isdecimal()
    ]
    for path in (*checkpoints(run), *unfinished):
        if path not in kept:
            shutil.rmtree(path)
    with contextlib.suppress(OSError):  # it is missing, or not empty
        folder.rmdir()


def newest_round(run: Path) -> int:
    """Returns the round of the newest checkpoint, 0 where there is none. It is not verified."""
    return max((int(path.name) for path in checkpoints(run)), default=0)
