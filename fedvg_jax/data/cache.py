"""Decoded datasets kept as plain .npy files, and the writing of cache entries whole or not at all.

An entry is named by where its source files are and by all their bytes, so it never goes stale, and writers that race
write the same. It appears by one rename once its bytes are on the disk. A reader trusts it only if it matches its
manifest, which is written last and holds its own checksum.
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

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.archive import Place
from fedvg_jax.data.arrays import OWN_WARNING, Arrays, refuse_too_large

VERSION = 3
"""Of the format of the entries below; part of their names."""

_PIECE = 2**22
"""Bytes of a file hashed at a time."""

_BLOCK = 128
"""Files a thread hashes at a time; one by one, small files take twice the CPU time."""

_STALE = 24 * 3600
"""Seconds after which a writer's scratch folder cannot belong to a living writer."""


class Folder(NamedTuple):
    """Many source files below one folder."""

    root: Path
    files: Sequence[Path]


def cached(
    reader: str, sources: Sequence[Path | Folder | str], decode: Callable[[], Arrays], cache_dir: Path | None
) -> Arrays:
    """Returns `decode()`, computed once for each place and content of the source files.

    All bytes of the source files are hashed at each call (SHA-256): never more than a few times what the decoded set
    holds, whose checksum is compared at each call too.

    Args:
        reader: name of the reader; the same bytes may mean something else to another.
        sources: the files `decode` reads, in order, and as text whatever else its outcome depends on.
        decode: reads them. Its outcome is not kept if a source file changed meanwhile.
        cache_dir: folder of the entries, made if need be; None keeps nothing.

    Returns:
        Arrays whose `x` is a read-only memory map wherever there is an entry.

    Raises:
        UsageError: a source file cannot be read; and whatever `decode` raises.
    """
    if cache_dir is None:
        return decode()
    name = digest(reader, VERSION, *sources)
    entry = Path(cache_dir) / f"{reader}-{name}"
    kept = _load(entry)
    if kept is not None:
        return kept
    arrays = decode()
    if digest(reader, VERSION, *sources) != name:
        return arrays
    publish(entry, lambda draft: _save(arrays, draft))
    return _load(entry) or arrays


def contents(file: Place) -> bytes:
    """All bytes of a file of the user's.

    Raises:
        UsageError: it cannot be read, or is larger than this machine's memory.
    """
    try:
        if isinstance(file, Path):
            files.refuse_special(file)
            refuse_too_large(file.stat().st_size, file)
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def digest(*parts: object) -> str:
    """A name for `parts`: files count by place and bytes, arrays by shape, dtype and values, all else by its text.

    >>> digest(np.zeros(2, np.uint8)) == digest(np.zeros(2, np.int8))
    False
    """
    return hashlib.sha256("\n".join(map(_digest, parts)).encode()).hexdigest()[:32]


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Make the file or folder `target` appear whole or not at all; one warning line if it cannot be written.

    Args:
        target: the entry; what is there already is replaced.
        write: makes the entry at the path it is given.
    """
    try:
        files.make_private(target.parent)
        _sweep(target)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True) as d:
            draft = Path(d) / target.name
            write(draft)
            _flush(draft)
            _move(draft, target)
    except OSError as error:
        warnings.warn(f"{OWN_WARNING} {target.parent} ({error}): going on without it", stacklevel=2)


def _digest(part: object) -> str:
    if isinstance(part, np.ndarray):
        return f"{part.dtype.str}{part.shape}{hashlib.sha256(np.ascontiguousarray(part)).hexdigest()}"
    if isinstance(part, Path):
        return f"{os.path.realpath(part)!r} {_file_digest(part)}"
    if not isinstance(part, Folder):
        return repr(part)
    names = [file.relative_to(part.root).as_posix() for file in part.files]
    blocks = (part.files[i : i + _BLOCK] for i in range(0, len(part.files), _BLOCK))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        digests = itertools.chain.from_iterable(threads.map(lambda block: list(map(_file_digest, block)), blocks))
        return repr((os.path.realpath(part.root), list(zip(names, digests, strict=True))))


def _file_digest(file: Path) -> str:
    files.refuse_special(file)
    content = hashlib.sha256()
    try:
        with file.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                content.update(piece)
    except OSError as error:
        raise _unreadable(file, error) from error
    return content.hexdigest()


def _unreadable(file: Path, error: OSError) -> UsageError:
    return UsageError(f"{file}: cannot be read ({error.strerror or error}); check the path and its permissions")


def _save(arrays: Arrays, entry: Path) -> None:
    entry.mkdir()
    members = {"x.npy": arrays.x, "y.npy": arrays.y} | ({} if arrays.groups is None else {"groups.npy": arrays.groups})
    for name, array in members.items():
        np.save(entry / name, array, allow_pickle=False)
    manifest = {
        "name": arrays.name,
        "class_names": arrays.class_names,
        "num_train": arrays.num_train,
        "files": {name: _seal(entry / name) for name in members},
    }
    text = json.dumps(manifest | {"crc": _checksum(manifest)})
    (entry / "manifest.json").write_text(text, encoding="utf-8")


def _load(entry: Path) -> Arrays | None:
    """The arrays of an entry; None if it is missing, incomplete or damaged."""
    try:
        manifest = files.read_object(entry / "manifest.json")
        if manifest.pop("crc") != _checksum(manifest):
            return None
        if any(_seal(entry / name) != seal for name, seal in manifest["files"].items()):
            return None
        members = {name: np.load(entry / name, mmap_mode="r", allow_pickle=False) for name in manifest["files"]}
        y, groups = (np.array(members[name]) if name in members else None for name in ("y.npy", "groups.npy"))
        about = tuple(manifest["class_names"]), manifest["num_train"]
        return Arrays(manifest["name"], members["x.npy"], y, *about, groups)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _checksum(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest).encode())


def _seal(file: Path) -> list[int]:
    """[bytes, CRC-32] of a file; the header inside a .npy file tells shape and dtype."""
    data = np.memmap(file, np.uint8, "r")
    return [data.size, zlib.crc32(data)]


def _sweep(target: Path) -> None:
    """Remove what killed writers of this entry left."""
    for scratch in target.parent.glob(f".{target.name}.*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _STALE:
                shutil.rmtree(scratch)


def _flush(draft: Path) -> None:
    """Bytes on the disk before the name that vouches for them."""
    for file in draft.iterdir() if draft.is_dir() else [draft]:
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())


def _move(draft: Path, target: Path, tries: int = 10) -> None:
    if target.is_dir():  # a folder cannot be renamed over another that is not empty
        with suppress(OSError):
            os.replace(target, draft.with_name("replaced"))
    try:
        os.replace(draft, target)
    except OSError:
        if target.exists():  # another writer was quicker, with the same content
            return
        if not tries:
            raise
        _move(draft, target, tries - 1)  # or took it away again to put its own there
