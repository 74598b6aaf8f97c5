"""Writes that a crash cannot leave half done, locks on folders, and JSON files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedvg_jax.host.errors import UsageError

LOCK = ".lock"


def replace(path: Path, content: str | bytes) -> None:
    """Replaces the content of `path`; a crash at any instant leaves the old or the new content."""
    with drafting(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def export_target(path: Path, setting: str = "export") -> Path:
    """Returns the file that an export to `path` writes: the target of a link, otherwise `path` itself.

    Args:
        path: the file.
        setting: that names it, for messages.

    Raises:
        UsageError: `path` is not a regular file, or its folder is missing or cannot be written to.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{setting} {path}: it is no regular file; name a regular file or a new file"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{setting} {path}: no folder {target.parent} that can be written to; name another file"
        )
    return target


@contextlib.contextmanager
def drafting(path: Path) -> Iterator[Path]:
    """Yields a file of this process to write, which then takes the place of `path`."""
    # the checksum keeps its name within the file system's limit
    draft = path.with_name(f".{zlib.crc32(os.fsencode(path.name)):08x}.{os.getpid()}.draft")
    try:
        yield draft
        flush([draft])
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    flush([path.parent])


def flush(paths: Iterable[Path]) -> None:
    """Waits until the content of files, and the entries of folders, are on the disk."""
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks a folder against other processes. The operating system releases the lock when the process ends.

    Raises:
        UsageError: another process holds the lock.
    """
    lock = folder / LOCK
    with claimed(lock) as is_held:
        if not is_held:
            owner = lock.read_text(encoding="utf-8").strip() or "another process"
            raise UsageError(
                f"run folder {folder} is in use by {owner}; wait for it, or name another --out"
            )
        lock.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield


@contextlib.contextmanager
def claimed(path: Path, waits: bool = False) -> Iterator[bool]:
    """Locks a file if no other process holds its lock; yields whether this process now holds it.

    The operating system releases the lock when the process ends, however it ends. The file stays. Where files cannot be
    locked, as on some network mounts, every process gets its lock.

    Args:
        path: the file, which is made if it is missing; its folder exists.
        waits: whether to wait for a process that holds the lock.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # on this mount
        yield True


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
        UsageError: it cannot be read, or is no JSON object (not UTF-8, cut short, nested too deeply, another type).
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UsageError(
            f"{path} is damaged: it must hold a JSON object, got {type(value).__name__}"
        )
    return value


def read_object_if_any(path: Path) -> dict[str, Any]:
    """Returns `read_object` of a file; {} where there is none."""
    return read_object(path) if path.exists() else {}


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file.

    Raises:
        UsageError: if the file cannot be read, or is not complete JSON.
    """
    try:
        return parse_json(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}") from None


def parse_json(text: bytes, source: object) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: bytes of the JSON.
        source: its name in errors.

    Raises:
        UsageError: it is no JSON (not UTF-8, cut short, nested too deeply).
    """
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is damaged: no JSON ({reason(error)})") from None


def make_private(folder: Path) -> None:
    """Makes a folder with access for this user only. An existing folder keeps its permissions."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def user_path(path: str | os.PathLike) -> Path:
    """Returns a path with a leading ~ or ~USER expanded, which only a shell does, and not after an equals sign."""
    return Path(os.path.expanduser(path))


@contextlib.contextmanager
def writing(what: object, option: str, remedy: str = "or name another with") -> Iterator[None]:
    """Raises UsageError in place of an OSError while something is written.

    Args:
        what: the path, and in words what it is.
        option: of the command line, which is the remedy.
        remedy: words before it.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {what}: {reason(error)}; fix it, {remedy} {option}"
        ) from None


def reason(error: BaseException) -> str:
    """Returns the message of an error in one line of at most 300 characters."""
    message = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(message.split())[:300] or type(error).__name__
