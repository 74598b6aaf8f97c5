"""Files that outlive a crash: whole or not there at all; and a folder that belongs to one process at a time."""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fedvg_jax.types import UsageError

LOCK = ".lock"


def replace(path: Path, text: str) -> None:
    """Makes `text` the content of `path`, which a crash at any instant leaves as it was or as it will be."""
    replace_bytes(path, [text.encode()], path.with_name(f".{path.name}.draft"))


def export_target(path: Path) -> Path:
    """The file that an export to `path` writes: for a link, the one it points to.

    Raises:
        UsageError: there is something else than a regular file (a folder, a device, a pipe, a link to nothing or to
            one of these), or no folder to write it in.
    """
    try:
        kind = None if not os.path.lexists(path) else stat.S_IFMT(path.stat().st_mode)
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise UsageError(f"export {path}: no such folder; make it, or name another file")
    except FileNotFoundError:
        raise UsageError(f"export {path}: it is a link to a file that is not there; name another file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"export {path}: {reason(error)}; name another file") from None
    if kind not in (None, stat.S_IFREG):
        raise UsageError(
            f"export {path}: it is {_KINDS.get(kind, 'no regular file')}; name a regular file, or a new one"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(f"export {path}: {target.parent} cannot be written to; name another file")
    return target


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def replace_bytes(path: Path, pieces: Iterable[bytes], draft: Path | None = None) -> None:
    """Makes the pieces the content of `path`, which a crash at any instant leaves as it was or as it will be.

    Args:
        draft: where they are written first, in the same folder; by default a name of this process.
    """
    draft = draft or path.with_name(f".{zlib.crc32(os.fsencode(path.name)):08x}.{os.getpid()}.draft")  # never too long
    try:
        with draft.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    flush([path.parent])


def append(path: Path, text: str, is_first: bool) -> None:
    """Adds whole lines to a file, or none of them where the disk is full.

    Args:
        is_first: whether to begin the file; else it must be there, so that one deleted meanwhile is noticed.
    """
    with path.open("ab" if is_first else "r+b", buffering=0) as file:
        end, data = file.seek(0, os.SEEK_END), text.encode()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(end)
            raise


def flush(paths: Iterable[Path]) -> None:
    """Waits until files, and the names in folders, are on the disk."""
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def seal(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, read a piece at a time."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return [size, crc]


def damaged(folder: Path, sealed: Mapping[str, Sequence[int]]) -> list[str]:
    """Names of the files of a folder that are gone or not as they were sealed."""
    return [name for name, known in sealed.items() if not (folder / name).is_file() or seal(folder / name) != known]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds a folder against other processes; the system lets go of it when the process ends, however it ends.

    Raises:
        UsageError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "another process"
            raise UsageError(f"run folder {folder} is in use by {who}; wait for it, or name another --out") from None
        except OSError as error:
            warnings.warn(f"{folder} cannot be locked ({error.strerror}): start no second run in it", stacklevel=3)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield


def reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(said.split())[:300] or type(error).__name__
