"""Digests that show whether the files of a run folder are as its run wrote them, and the checkpoints that have them.

RUN/digests.json                     of the files that describe the run, written after its summary
RUN/checkpoints/000040/digests.json  of the history up to that round, of `DOCUMENTS`, and of every array

A checkpoint without digests is half-written. They detect accidental changes, not tampering.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

FILE = "digests.json"
CHECKPOINTS = "checkpoints"
HISTORY = "history.jsonl"

DOCUMENTS = ("layers.json", "partition.json")
"""Files that describe what a run was computed from, and that stay as they were written."""

OF_RUN = (*DOCUMENTS, HISTORY, "config.json", "manifest.json", "summary.json")
"""Files that a finished run has digests of."""

Digest = list[int]
"""Size in bytes and CRC-32."""


class Digests(NamedTuple):
    """The content of a digests.json."""

    files: dict[str, Digest]
    leaves: dict[str, list]
    """path of an array -> shape, dtype and CRC-32; {} in a run folder"""


def extended(digest: Digest, data: bytes) -> Digest:
    """Returns the digest of a text after more bytes.

    >>> extended(extended([0, 0], b"a"), b"b") == extended([0, 0], b"ab")
    True
    """
    return [digest[0] + len(data), zlib.crc32(data, digest[1])]


def of_files(folder: Path, names: Iterable[str]) -> dict[str, Digest]:
    """Returns the digests of those of the files that exist."""
    paths = [path for name in names if (path := folder / name).exists()]
    return {path.name: extended([0, 0], path.read_bytes()) for path in paths}


def write(folder: Path, of_run: Mapping[str, Digest], leaves: Mapping[str, list] = {}) -> None:
    """Writes the digests of files of a run, and those of a checkpoint's arrays, to one of its folders."""
    files.replace(folder / FILE, json.dumps({"files": dict(of_run), "leaves": dict(leaves)}))


def read(folder: Path) -> Digests:
    """Returns the digests in a run folder or a checkpoint.

    Raises:
        UsageError: they are damaged.
    """
    stored = files.read_object(folder / FILE)
    digests = Digests(stored.get("files", ()), stored.get("leaves", ()))
    for field, size in zip(digests, (2, 3), strict=True):
        if not isinstance(field, dict) or any(not isinstance(v, list) or len(v) != size for v in field.values()):
            raise UsageError(f"{folder / FILE} is damaged: it holds no digests")
    return digests


def check(run: Path) -> list[str]:
    """Returns a line for each file of a run folder that is not as the run wrote it.

    Lines of the history behind those that have a digest are not compared, and arrays neither: `checkpoint.check` does.
    Checkpoints whose digests are damaged are left out: a resumed run skips them.
    """
    changed = []
    for folder in (run, *checkpoints(run)):
        try:
            digests = read(folder).files if (folder / FILE).exists() else {}
        except UsageError as error:
            changed += [str(error)] if folder == run else []
            continue
        changed += [f"{name} is not as its run left it" for name in digests if not _fits(run / name, digests[name])]
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
    return any((path / name).exists() for name in (CHECKPOINTS, FILE, HISTORY))


def checkpoint_folder(run: Path, number: int) -> Path:
    """Returns the folder of a round's checkpoint."""
    return run / CHECKPOINTS / f"{number:06d}"


def checkpoints(run: Path, *, is_complete: bool = True) -> list[Path]:
    """Returns the folders of a run's checkpoints, oldest first.

    Args:
        run: its folder.
        is_complete: whether to leave out those that are half-written.

    Raises:
        UsageError: their folder cannot be read, so that it is unknown whether there are any.
    """
    try:
        paths = list((run / CHECKPOINTS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"{run / CHECKPOINTS} cannot be read: {files.reason(error)}") from None
    numbered = [path for path in paths if path.name.isdecimal() and path.name.isascii()]
    found = [path for path in numbered if not is_complete or (path / FILE).is_file()]
    return sorted(found, key=lambda path: int(path.name))


def newest_round(run: Path) -> int:
    """Returns the round of the newest complete checkpoint, 0 where there is none. It is not verified."""
    return max((int(path.name) for path in checkpoints(run)), default=0)
