"""Reads data sets that are published as archives, unpacked or not."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, reading, refuse_too_large

MAX_MEMBER = 2**28
"""Largest member in bytes; every member of the supported data sets is smaller."""

_CHUNK = 2**20

Share = Callable[[float], None]
"""(fraction of the archive that is read, 0..1) -> None"""


Parts = list[tuple[object, bytes]]
"""Name in errors, and bytes, of each file."""


class Form(NamedTuple):
    """One form in which a data set is published as a tar archive of binary files."""

    folder: str
    """Folder in the archive."""
    archive: str
    files: tuple[str, ...]


def find(
    data_dir: Path, forms: Sequence[Form], layout: str, source: str, progress: Share | None = None
) -> tuple[list[Path], Callable[[], tuple[int, Parts]]]:
    """Returns the files of a data set, and a function that reads them: the number of their form, and its files.

    Args:
        data_dir: holds the files of a form, its folder or its archive; or the archive itself.
        forms: the first that is there is read.
        layout: what `data_dir` may hold, for errors.
        source: where to download it, for errors.
        progress: called while an archive is read.

    Raises:
        UsageError: no form is there, or not all of its files are.
    """
    for number, form in enumerate(forms):
        for folder in (data_dir, data_dir / form.folder):
            paths = [folder / name for name in form.files]
            missing = [path.name for path in paths if not path.is_file()]
            if not missing:
                return paths, lambda number=number, paths=paths: (number, [(path, contents(path)) for path in paths])
            if len(missing) < len(paths):
                raise UsageError(f"{folder}: {', '.join(missing)} missing; unpack {source} there again")
    archives = [data_dir, *(data_dir / form.archive for form in forms)]
    archive = next((path for path in archives if path.is_file()), None)
    if archive is None:
        raise UsageError(f"{data_dir}: holds no {layout}; put {source} there")
    return [archive], lambda: _unpacked(archive, forms, source, progress)


def _unpacked(archive: Path, forms: Sequence[Form], source: str, progress: Share | None) -> tuple[int, Parts]:
    members = of_tar(archive, {name for form in forms for name in form.files}, source, progress)
    missing = [[name for name in form.files if name not in members] for form in forms]
    number = min(range(len(forms)), key=lambda n: len(missing[n]))
    if missing[number]:
        raise UsageError(f"{archive}: does not hold {', '.join(missing[number])}; fetch {source} again")
    return number, [(f"{archive} ({name})", members[name]) for name in forms[number].files]


def contents(file: Path) -> bytes:
    """Returns all bytes of a user's file.

    Raises:
        UsageError: it cannot be read, or is larger than this machine's memory.
    """
    try:
        files.refuse_special(file)
        refuse_too_large(file.stat().st_size, file)
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError) -> UsageError:
    """Returns the error of a file that cannot be read."""
    return UsageError(f"{file}: cannot be read ({error.strerror or error}); check the path and its permissions")


def records(content: bytes, size: int, file: object, source: str) -> np.ndarray:
    """Returns the records of a binary file, uint8 [n, size].

    Raises:
        UsageError: there is none, or an incomplete one.
    """
    data = np.frombuffer(content, np.uint8)
    if not data.size or data.size % size:
        got = f"{data.size} bytes is not a whole number of {size}-byte records"
        raise UsageError(f"{file}: {got}; fetch {source} again")
    return data.reshape(-1, size)


def labels(numbers: np.ndarray, first: int, num_classes: int, file: object, source: str) -> np.ndarray:
    """Returns labels from 0 of a file whose labels count from `first`.

    Raises:
        UsageError: one is out of range.
    """
    wrong = numbers[(numbers < first) | (numbers >= first + num_classes)]
    if wrong.size:
        last = first + num_classes - 1
        raise UsageError(f"{file}: labels must be {first}..{last}, got {wrong[0]}; fetch {source} again")
    return numbers - first


def of_tar(archive: Path, wanted: Collection[str], source: str, progress: Share | None = None) -> dict[str, bytes]:
    """Returns the contents of the `wanted` members, by their names without folders.

    The whole archive is read, which verifies its checksum.

    Args:
        archive: a tar file, compressed or not.
        wanted: names of members; missing ones are not in the result.
        source: where to download the archive, for errors.
        progress: called while the archive is read.

    Raises:
        UsageError: no complete archive, or a wanted member of more than `MAX_MEMBER` bytes.
    """
    members: dict[str, bytes] = {}
    complete = reading(archive, "a complete archive", f"fetch {source} again")
    with complete, archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        size = archive.stat().st_size
        for member in tar:
            name = Path(member.name).name
            is_wanted = name in wanted and member.isreg()
            if is_wanted and member.size > MAX_MEMBER:
                raise UsageError(f"{archive}: {name} claims {member.size:,} bytes; fetch {source} again")
            pieces = []
            for piece in _pieces(tar.extractfile(member) if member.isreg() else None):
                pieces += [piece] * is_wanted
                if progress:
                    progress(raw.tell() / size)
            if is_wanted:
                members[name] = b"".join(pieces)
        for _ in _pieces(tar.fileobj):  # to the end, where the checksum is
            pass
    return members


def unzipped(file: Path, source: str, read: Callable[..., Arrays], **options: Any) -> Arrays:
    """Returns the data set in a zip archive, which is unpacked into a temporary folder; errors name the archive.

    Args:
        file: a .zip file.
        source: where to download it, for errors.
        read: (folder, **options) -> data set in memory, because the folder is removed.
        options: of `read`.

    Raises:
        UsageError: the file is not a complete zip archive, a member has more than `MAX_MEMBER` bytes, or the disk is
            too full to unpack it.
    """
    with tempfile.TemporaryDirectory(prefix="fedvg_jax-") as folder:
        complete = reading(file, "a complete .zip archive", f"fetch {source} again")
        with complete, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.file_size > MAX_MEMBER:
                    claim = f"{member.filename} claims {member.file_size:,} bytes"
                    raise UsageError(f"{file}: {claim}; fetch {source} again")
            try:
                archive.extractall(folder)
            except OSError as error:
                problem = f"cannot be unpacked ({files.reason(error)})"
                raise UsageError(f"{file}: {problem}; unpack it into a folder yourself") from error
        try:
            return read(Path(folder), **options)
        except UsageError as error:
            raise UsageError(str(error).replace(folder, str(file))) from None


def _pieces(stream: Any) -> Iterator[bytes]:
    """Yields the bytes of a stream to its end; nothing for None."""
    while stream and (piece := stream.read(_CHUNK)):
        yield piece
