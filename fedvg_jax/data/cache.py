"""Cache of decoded data sets as plain .npy files; an entry is named by the paths and contents of its sources.

An entry appears by one rename, after its bytes are on the disk, so it is whole or not there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files

_log = logging.getLogger(__name__)

VERSION = 6
"""Version of the entries' format; part of their names."""


class Status(NamedTuple):
    """One of many small files, which takes as long to read as to decode: it is judged by its status on the disk."""

    path: Path


def cached(
    reader: str,
    sources: Sequence[Path | Status | str],
    decode: Callable[[], Arrays],
    cache_dir: Path | None,
) -> Arrays:
    """Returns `decode()`, computed once per path and content of the source files.

    Args:
        reader: name of the reader, because readers decode the same bytes differently.
        sources: the files that `decode` reads, in order, and everything else that its result depends on, as text.
        decode: reads the source files. Its result is not kept if a source file changes meanwhile.
        cache_dir: folder of the entries, created if missing; None keeps nothing.

    Returns:
        Arrays; their `x` is a read-only memory map if there is an entry.

    Raises:
        OSError: a source file cannot be read.
        UsageError: as `decode`.
    """
    if cache_dir is None:
        return decode()
    name = digest(reader, VERSION, *sources)
    entry = Path(cache_dir) / f"{reader}-{name}"
    if (stored := _load(entry)) is not None:
        return stored
    arrays = decode()
    if digest(reader, VERSION, *sources) == name:
        publish(entry, lambda draft: _save(arrays, draft))
    return _load(entry) or arrays


def digest(*parts: object) -> str:
    """Returns a name for `parts`, 32 hexadecimal digits.

    Files enter with path and content, a `Status` with path, size, times of change and inode, arrays with shape, dtype
    and values, everything else with its `repr`.

    >>> digest(np.zeros(2, np.uint8)) == digest(np.zeros(2, np.int8))
    False
    """
    content = hashlib.sha256()
    for number, part in enumerate(parts):  # one at a time: a partition may have millions
        content.update((("\n" if number else "") + _digest(part)).encode())
    return content.hexdigest()[:32]


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Writes the file or folder `target` atomically; gives one warning line if it cannot be written.

    Args:
        target: the entry; an existing one is replaced.
        write: writes the entry at the path of its argument.
    """
    try:
        files.make_private(target.parent)
        with tempfile.TemporaryDirectory(
            prefix=".draft-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            draft = Path(folder) / target.name
            write(draft)
            # so that the name appears after the bytes
            files.flush(draft.iterdir() if draft.is_dir() else [draft])
            # which no rename replaces: it moves aside, to be removed with the draft's folder
            if target.is_dir():
                with contextlib.suppress(FileNotFoundError):
                    os.rename(target, Path(folder) / "replaced")
            os.replace(draft, target)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY or target.exists():
            return  # another process has written the same content
        _log.warning(
            "cannot write to the cache folder %s (%s): continuing without it", target.parent, error
        )


def _digest(part: object) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}{part.shape}{hashlib.sha256(np.ascontiguousarray(part).data).hexdigest()}"
    if isinstance(part, Path):
        with part.open("rb") as file:
            return f"{os.path.abspath(part)!r} {hashlib.file_digest(file, 'sha256').hexdigest()}"
    if isinstance(part, Status):
        status = part.path.stat()
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"  # no program sets the second
        return f"{os.path.abspath(part.path)!r} {status.st_size} {times} {status.st_ino}"
    return repr(part)


def _save(arrays: Arrays, entry: Path) -> None:
    entry.mkdir()
    for name in ("x", "y") if arrays.groups is None else ("x", "y", "groups"):
        np.save(entry / f"{name}.npy", getattr(arrays, name), allow_pickle=False)
    about = {"name": arrays.name, "class_names": arrays.class_names, "num_train": arrays.num_train}
    (entry / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _load(entry: Path) -> Arrays | None:
    """Returns the arrays of an entry; None if there is none, or it cannot be read."""
    try:
        about = files.read_object(entry / "about.json")
        x, y = (
            np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("x", "y")
        )
        groups = np.load(entry / "groups.npy") if (entry / "groups.npy").exists() else None
        return Arrays(
            about["name"], x, np.array(y), tuple(about["class_names"]), about["num_train"], groups
        )
    except (OSError, ValueError, LookupError):
        return None
