"""Cache of decoded data sets as plain .npy files, with atomic writes.

- The name of an entry contains a digest of the paths and all bytes of its source files. It never goes stale, and
  concurrent writers write equal entries.
- An entry appears by one rename, after its bytes are on the disk.
- A reader trusts an entry only if it matches its manifest, which is written last and has a checksum of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.data.arrays import OWN_WARNING, Arrays, unreadable
from fedvg_jax.host import files

VERSION = 5
"""Version of the entries' format; part of their names."""

_FILES_PER_TASK = 128
"""Files that a thread hashes per task; with one file per task, small files take twice the CPU time."""

_STALE = 24 * 3600
"""Age in seconds at which a scratch folder is left from a killed writer."""


class Folder(NamedTuple):
    """Source files below one folder."""

    root: Path
    files: Sequence[Path]


def cached(
    reader: str, sources: Sequence[Path | Folder | str], decode: Callable[[], Arrays], cache_dir: Path | None
) -> Arrays:
    """Returns `decode()`, computed once per path and content of the source files.

    Each call hashes all bytes of the source files (SHA-256) and compares the checksums of the entry.

    Args:
        reader: name of the reader, because readers decode the same bytes differently.
        sources: the files that `decode` reads, in order, and everything else that its result depends on, as text.
        decode: reads the source files. Its result is not kept if a source file changes meanwhile.
        cache_dir: folder of the entries, created if missing; None keeps nothing.

    Returns:
        Arrays whose `x` is a read-only memory map if there is an entry.

    Raises:
        UsageError: a source file cannot be read; or as `decode`.
    """
    if cache_dir is None:
        return decode()
    name = digest(reader, VERSION, *sources)
    entry = Path(cache_dir) / f"{reader}-{name}"
    stored = _load(entry)
    if stored is not None:
        return stored
    arrays = decode()
    if digest(reader, VERSION, *sources) != name:
        return arrays
    publish(entry, lambda draft: _save(arrays, draft))
    return _load(entry) or arrays


def digest(*parts: object) -> str:
    """Returns a name for `parts`, 32 hexadecimal digits.

    Files enter with their path and bytes, arrays with shape, dtype and values, everything else with its `repr`.

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
        _sweep(target)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            draft = Path(folder) / target.name
            write(draft)
            files.flush(draft.iterdir() if draft.is_dir() else [draft])  # so that the name appears after the bytes
            _move(draft, target)
    except OSError as error:
        warnings.warn(f"{OWN_WARNING} {target.parent} ({error}): continuing without it", stacklevel=2)


def _digest(part: object) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}{part.shape}{hashlib.sha256(np.ascontiguousarray(part).data).hexdigest()}"
    if isinstance(part, Path):
        return f"{os.path.realpath(part)!r} {_file_digest(part)}"
    if not isinstance(part, Folder):
        return repr(part)
    names = [file.relative_to(part.root).as_posix() for file in part.files]
    tasks = (part.files[i : i + _FILES_PER_TASK] for i in range(0, len(part.files), _FILES_PER_TASK))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        digests = itertools.chain.from_iterable(threads.map(lambda task: list(map(_file_digest, task)), tasks))
        return repr((os.path.realpath(part.root), list(zip(names, digests, strict=True))))


def _file_digest(file: Path) -> str:
    files.refuse_special(file)
    try:
        with file.open("rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(file, error) from error


def _save(arrays: Arrays, entry: Path) -> None:
    entry.mkdir()
    members = {"x.npy": arrays.x, "y.npy": arrays.y} | ({} if arrays.groups is None else {"groups.npy": arrays.groups})
    for name, array in members.items():
        np.save(entry / name, array, allow_pickle=False)
    manifest = {
        "name": arrays.name,
        "class_names": arrays.class_names,
        "num_train": arrays.num_train,
        "files": {name: files.seal(entry / name) for name in members},
    }
    text = json.dumps(manifest | {"crc": _checksum(manifest)})
    (entry / "manifest.json").write_text(text, encoding="utf-8")


def _load(entry: Path) -> Arrays | None:
    """Returns the arrays of an entry, or None if it is missing, incomplete or damaged."""
    try:
        manifest = files.read_object(entry / "manifest.json")
        if manifest.pop("crc") != _checksum(manifest):
            return None
        if files.damaged(entry, manifest["files"]):
            return None
        members = {name: np.load(entry / name, mmap_mode="r", allow_pickle=False) for name in manifest["files"]}
        groups = np.array(members["groups.npy"]) if "groups.npy" in members else None
        described = tuple(manifest["class_names"]), manifest["num_train"]
        return Arrays(manifest["name"], members["x.npy"], np.array(members["y.npy"]), *described, groups)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _checksum(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest).encode())


def _sweep(target: Path) -> None:
    """Removes the scratch folders of killed writers of this entry."""
    for scratch in target.parent.glob(f".{target.name}.*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _STALE:
                shutil.rmtree(scratch)


def _move(draft: Path, target: Path, tries: int = 10) -> None:
    if target.is_dir():  # a folder cannot be renamed over another that is not empty
        with suppress(OSError):
            os.replace(target, draft.with_name("replaced"))
    try:
        os.replace(draft, target)
    except OSError:
        if target.exists():  # another writer was faster and wrote the same content
            return
        if not tries:
            raise
        _move(draft, target, tries - 1)  # another writer moved the target away to put its own there
