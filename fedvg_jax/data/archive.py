"""Reads members of .tar.gz and .zip archives in memory; nothing is written to the disk."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reason

MAX_MEMBER = 2**28
"""Largest member in bytes; every member of the supported data sets is smaller."""

_CHUNK = 2**20

Share = Callable[[float], None]
"""(fraction of the archive that is read, 0..1) -> None"""


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
    contents: dict[str, bytes] = {}
    try:
        with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
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
                    contents[name] = b"".join(pieces)
            for _ in _pieces(tar.fileobj):  # to the end, where the checksum is
                pass
    except UsageError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{archive}: not a complete archive ({reason(error)}); fetch {source} again") from error
    return contents


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Entry(NamedTuple):
    """A file or folder in a zip archive, with the part of the interface of `Path` that readers of folders use."""

    archive: Path
    unzip: Callable[[str], bytes]
    """(path in the archive) -> content."""
    tree: Mapping[str, Collection[str]]
    """Path of every folder in the archive -> names in it."""
    path: str = ""
    """Path in the archive; "" is the archive itself."""

    def __truediv__(self, name: str) -> Entry:
        return self._replace(path=f"{self.path}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.archive} ({self.path})" if self.path else str(self.archive)

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Extension of the name with its dot."""
        return Path(self.name).suffix

    def is_dir(self) -> bool:
        """Returns whether the entry is a folder."""
        return self.path in self.tree

    def is_file(self) -> bool:
        """Returns whether the entry is a file."""
        folder = self.path.rpartition("/")[0]
        return self.name in self.tree.get(folder, ()) and not self.is_dir()

    def iterdir(self) -> Iterator[Entry]:
        """Returns the entries of a folder."""
        return (self / name for name in self.tree[self.path])

    def read_bytes(self) -> bytes:
        """Returns the content, verified by its checksum.

        Raises:
            UsageError: the member is damaged, or has more than `MAX_MEMBER` bytes.
        """
        return self.unzip(self.path)


Place = Path | Entry
"""A file or folder, on the disk or in an archive."""


@contextlib.contextmanager
def opened(path: Path, source: str) -> Iterator[Place]:
    """Yields a folder itself, or the root `Entry` of a zip archive.

    Args:
        path: a folder or a .zip file.
        source: where to download the archive, for errors.

    Raises:
        UsageError: a file that is not a complete zip archive.
    """
    if not path.is_file():
        yield path
        return
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UsageError(f"{path}: not a complete .zip archive ({reason(error)}); fetch {source} again") from error
    with archive:
        files = {member.filename.strip("/"): member for member in archive.infolist()}

        def unzip(name: str) -> bytes:
            try:
                if name not in files:
                    raise UsageError(f"{path}: {name} is not in the archive; fetch {source} again")
                if files[name].file_size > MAX_MEMBER:
                    raise UsageError(f"{path}: {name} claims {files[name].file_size:,} bytes; fetch {source} again")
                return archive.read(files[name])
            except UsageError:
                raise
            except Exception as error:  # a damaged member raises what its first bad byte leads to
                problem = f"{path}: {name} cannot be read ({reason(error)})"
                raise UsageError(f"{problem}; fetch {source} again") from error

        yield Entry(path, unzip, _tree(member.filename for member in archive.infolist()))


def _tree(names: Iterator[str]) -> dict[str, dict[str, None]]:
    """Returns the names in every folder, also in folders without a member of their own, whose name ends in a slash."""
    tree: dict[str, dict[str, None]] = {"": {}}
    for name in names:
        if name.endswith("/"):
            tree.setdefault(name.strip("/"), {})
        path = name.strip("/")
        while path:
            folder, _, last = path.rpartition("/")
            is_listed = last in tree.setdefault(folder, {})
            tree[folder][last] = None
            path = "" if is_listed else folder
    return tree


def _pieces(stream: _Readable | None) -> Iterator[bytes]:
    """Yields the bytes of a stream to its end; nothing for None."""
    while stream and (piece := stream.read(_CHUNK)):
        yield piece
