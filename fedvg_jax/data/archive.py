"""What is in .tar.gz and .zip archives, read where it is: nothing is written to the disk."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reason

MAX_MEMBER = 2**28
"""Bytes above which a member is none of a set's."""

_CHUNK = 2**20

Share = Callable[[float], None]
"""share of the archive that is done, 0..1 -> None"""


def of_tar(archive: Path, wanted: Collection[str], source: str, progress: Share | None = None) -> dict[str, bytes]:
    """The contents of the `wanted` members by their names without folders; the whole archive is read and verified.

    Args:
        archive: a tar file, compressed or not.
        wanted: names; those that are not there are missing in the result.
        source: where another copy is to be had, for errors.
        progress: told while it works.

    Raises:
        UsageError: no complete archive, or a wanted member of more than `MAX_MEMBER`.
    """
    found: dict[str, bytes] = {}
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
                    found[name] = b"".join(pieces)
            for _ in _pieces(tar.fileobj):  # to its end, where its checksum is
                pass
    except UsageError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{archive}: not a complete archive ({reason(error)}); fetch {source} again") from error
    return found


class Entry(NamedTuple):
    """A file or folder in a zip archive, with as much of a `Path` as readers of folders need."""

    archive: Path
    unzip: Callable[[str], bytes]
    """path in the archive -> its content"""
    tree: Mapping[str, Collection[str]]
    """path of every folder in the archive -> names in it"""
    at: str = ""
    """its own path in the archive; "" is the archive itself"""

    def __truediv__(self, name: str) -> Entry:
        return self._replace(at=f"{self.at}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.archive} ({self.at})" if self.at else str(self.archive)

    @property
    def name(self) -> str:
        return self.at.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    def is_dir(self) -> bool:
        return self.at in self.tree

    def is_file(self) -> bool:
        folder = self.at.rpartition("/")[0]
        return self.name in self.tree.get(folder, ()) and not self.is_dir()

    def iterdir(self) -> Iterator[Entry]:
        return (self / name for name in self.tree[self.at])

    def read_bytes(self) -> bytes:
        """Verified by its checksum.

        Raises:
            UsageError: it is damaged, or of more than `MAX_MEMBER` bytes.
        """
        return self.unzip(self.at)


Place = Path | Entry
"""A file or folder, on the disk or in an archive."""


@contextlib.contextmanager
def opened(path: Path, source: str) -> Iterator[Place]:
    """A folder as it is, or what is in a zip archive.

    Raises:
        UsageError: a file that is no complete zip archive.
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
                said = f"{path}: {name} cannot be read ({reason(error)})"
                raise UsageError(f"{said}; fetch {source} again") from error

        yield Entry(path, unzip, _tree(member.filename for member in archive.infolist()))


def _tree(names: Iterator[str]) -> dict[str, dict[str, None]]:
    """Names in every folder, also in those that have no member of their own; a folder's member ends in a slash."""
    tree: dict[str, dict[str, None]] = {"": {}}
    for name in names:
        if name.endswith("/"):
            tree.setdefault(name.strip("/"), {})
        at = name.strip("/")
        while at:
            folder, _, last = at.rpartition("/")
            is_known = last in tree.setdefault(folder, {})
            tree[folder][last] = None
            at = "" if is_known else folder
    return tree


def _pieces(stream) -> Iterator[bytes]:
    """A stream's bytes to its end; none of no stream."""
    while stream and (piece := stream.read(_CHUNK)):
        yield piece
