"""Cache of decoded data sets as plain .npy files; an entry is named by its options and the status of its source files.

An entry appears by one rename, after its bytes are on the disk, so it is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files

_log = logging.getLogger(__name__)

VERSION = 7
"""Version of the entries' format; part of their names."""


def cached(
    sources: Sequence[Path],
    decode: Callable[[], Arrays],
    reader: str,
    cache_dir: Path | None,
) -> Arrays:
    """Returns `decode()`, computed once per path and status of the source files.

    Args:
        sources: the files that `decode` reads, in order; its result is not kept if there is none. If one changes
            meanwhile, no later status has the name of the entry.
        decode: reads the files.
        reader: name and options of the reader, because readers decode the same bytes differently.
        cache_dir: folder of the entries, created if missing; None keeps nothing.

    Returns:
        Arrays; their `x` is a read-only memory map if there is an entry.

    Raises:
        OSError: a source file cannot be read.
        UsageError: as `decode`.
    """
    if cache_dir is None or not sources:
        return decode()
    entry = Path(cache_dir) / digest(VERSION, reader, *map(_status, sources))
    if (stored := _load(entry)) is not None:
        return stored
    shutil.rmtree(entry, ignore_errors=True)  # a damaged one
    arrays = decode()
    _publish(arrays, entry)
    return _load(entry) or arrays


def digest(*parts: object) -> str:
    """Returns a name for `parts`, 32 hexadecimal digits: arrays by shape, dtype and values, all else by `repr`.

    >>> digest(np.zeros(2, np.uint8)) == digest(np.zeros(2, np.int8))
    False
    """
    content = hashlib.sha256()
    for number, part in enumerate(parts):  # one at a time: a partition may have millions
        content.update((("\n" if number else "") + _digest(part)).encode())
    return content.hexdigest()[:32]


def _digest(part: object) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}{part.shape}{hashlib.sha256(np.ascontiguousarray(part).data).hexdigest()}"
    return repr(part)


def _status(path: Path) -> tuple:
    """Returns what changes with a file: its path, size, times and inode."""
    status = path.stat()
    # no program sets the time of a change of status
    times = status.st_mtime_ns, status.st_ctime_ns
    return os.path.abspath(path), status.st_size, *times, status.st_ino


def _publish(arrays: Arrays, entry: Path) -> None:
    """Writes an entry atomically; gives one warning line if it cannot be written."""
    about = {"name": arrays.name, "class_names": arrays.class_names, "num_train": arrays.num_train}
    try:
        files.make_private(entry.parent)
        with tempfile.TemporaryDirectory(
            prefix=".draft-", dir=entry.parent, ignore_cleanup_errors=True
        ) as folder:
            draft = Path(folder)
            for name in ("x", "y", "groups"):
                if (array := getattr(arrays, name)) is not None:
                    np.save(draft / f"{name}.npy", array, allow_pickle=False)
            (draft / "about.json").write_text(json.dumps(about), encoding="utf-8")
            files.flush(draft.iterdir())  # so that the name appears after the bytes
            os.rename(draft, entry)
    except OSError as error:
        if not entry.exists():  # another process may have written the same content
            _log.warning(
                "cannot write to the cache folder %s (%s): continuing without it",
                entry.parent,
                error,
            )


def _load(entry: Path) -> Arrays | None:
    """Returns the arrays of an entry; None if there is none, or it cannot be read."""
    try:
        about = files.read_object(entry / "about.json")
        about["class_names"] = tuple(about["class_names"])
        paths = entry.glob("*.npy")
        members = {path.stem: np.load(path, "r", allow_pickle=False) for path in paths}
        return Arrays(**about, **members)
    except (OSError, ValueError, LookupError, TypeError):
        return None
