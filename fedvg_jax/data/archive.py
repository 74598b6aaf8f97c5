"""Reads data sets that are published as archives, unpacked or not."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays, reading

MAX_MEMBER = 2**28
"""Largest member in bytes; every member of the supported data sets is smaller."""


class Form(NamedTuple):
    """One form in which a data set is published."""

    folder: str
    """Folder in the archive."""
    archive: str
    files: tuple[str, ...]
    """Names of the files that the folder holds; all that are read of a tar archive."""


def find(data_dir: Path, forms: Sequence[Form], layout: str, source: str) -> tuple[int, list[Path]]:
    """Returns the number of the form in which a folder holds a data set, and its files.

    Args:
        data_dir: holds the files of a form, or its folder.
        forms: the first that is there is read.
        layout: what `data_dir` may hold, for errors.
        source: where to download it, for errors.

    Raises:
        UsageError: no form is there, or not all of its files are.
    """
    for number, form in enumerate(forms):
        for folder in (data_dir, data_dir / form.folder):
            paths = [folder / name for name in form.files]
            missing = [path.name for path in paths if not path.is_file()]
            if not missing:
                return number, paths
            if len(missing) < len(paths):
                raise UsageError(f"{folder}: {', '.join(missing)} missing; fetch {source} again")
    raise UsageError(f"{data_dir}: holds no {layout}; put {source} there")


def packed(data_dir: Path, forms: Sequence[Form]) -> Path | None:
    """Returns the archive of a data set: `data_dir` itself, or that of a form in it, unless files of one are there."""
    if data_dir.is_file():
        return data_dir
    files = (folder / name for form in forms for folder in (data_dir, data_dir / form.folder) for name in form.files)
    archives = (data_dir / form.archive for form in forms)
    return None if any(map(Path.is_file, files)) else next(filter(Path.is_file, archives), None)


def load(
    name: str,
    place: Path,
    cache_dir: Path | None,
    read: Callable[..., Arrays],
    source: str,
    forms: Sequence[Form] = (),
    **options: Any,
) -> Arrays:
    """Returns a data set in a folder, or in an archive, which is unpacked into a temporary folder.

    Args:
        name: of the data set.
        place: a folder, or a file, which is a .zip or a tar archive.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        read: (folder, cache_dir, **options) -> data set; in memory where `cache_dir` is None.
        source: where to download it, for errors.
        forms: of a tar archive, whose other members are left out.
        options: of `read`.

    Raises:
        UsageError: as `read`, with the name of the archive; the file is no complete archive, or a member has more than
            `MAX_MEMBER` bytes.
    """
    place = packed(place, forms) or place
    if not place.is_file():
        return read(place, cache_dir, **options)

    def read_packed() -> Arrays:
        with tempfile.TemporaryDirectory(prefix="fedvg_jax-") as folder:
            kind = "unpacked as a complete archive"
            with reading(place, kind, f"fetch {source} again, or unpack it into a folder"):
                unpack = _unpack_zip if zipfile.is_zipfile(place) else _unpack_tar
                unpack(place, Path(folder), source, {name for form in forms for name in form.files})
            try:
                return read(Path(folder), None, **options)
            except UsageError as error:
                raise UsageError(str(error).replace(folder, str(place))) from None

    return cache.cached(name, [place, f"{options.get('size')}"], read_packed, cache_dir)


def _unpack_zip(file: Path, folder: Path, source: str, wanted: Collection[str]) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            _check_size(file, member.filename, member.file_size, source)
        archive.extractall(folder)


def _unpack_tar(file: Path, folder: Path, source: str, wanted: Collection[str]) -> None:
    """Writes the `wanted` members into the folder, by their names without folders.

    The whole archive is read, which verifies its checksum.
    """
    with tarfile.open(file) as archive:
        for member in archive:
            name = Path(member.name).name
            if name in wanted and (content := archive.extractfile(member)):
                _check_size(file, name, member.size, source)
                (folder / name).write_bytes(content.read())
        stream: Any = archive.fileobj
        while stream.read(2**20):  # to the end, where the checksum is
            pass


def _check_size(file: Path, name: str, size: int, source: str) -> None:
    if size > MAX_MEMBER:
        raise UsageError(f"{file}: {name} would be {size:,} bytes large; fetch {source} again")
