"""Downloads the files of published data sets: addresses, checksums, and the folder in the cache where runs look.

Only `python -m fedvg_jax.prepare NAME --download` calls `fetch` and `fetch_hub_set`; runs download nothing. Files are
fetched and unpacked in a draft folder. They reach their place by one rename, after their checksum is verified.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fedvg_jax.data.arrays import Size, reading
from fedvg_jax.data.datasets import find
from fedvg_jax.data.readers.npz import SETS as MEDMNIST, file_name
from fedvg_jax.host import extras, files
from fedvg_jax.host.errors import UsageError

RETRIES = 2
"""Further attempts after an error of the network or a wrong checksum."""

TIMEOUT = 20
"""Seconds without a byte after which an attempt fails."""


class Published(NamedTuple):
    """A file that a publisher offers."""

    url: str
    md5: str
    folder: str = ""
    """Folder that the archive holds; "" for a file that is read as it is."""
    left_out: tuple[str, ...] = ()
    """Files of the archive that no reader needs."""

    @property
    def file(self) -> str:
        """Name of the file."""
        return Path(urlsplit(self.url).path).name


_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz/"
_ZENODO = "https://zenodo.org/records/10519652/files/{}?download=1"

# checksums of cifar.py and stl10.py in https://github.com/pytorch/vision, and of tiny_imagenet.py in
# https://github.com/ContinualAI/avalanche, because its publisher names none
FILES = {
    "cifar10": Published(
        f"{_KRIZHEVSKY}cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    "cifar100": Published(
        f"{_KRIZHEVSKY}cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    "stl10": Published(
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "91f7769df0f17e558f3565bffb0c7dfb",
        "stl10_binary",
        ("unlabeled_X.bin",),
    ),
    "tinyimagenet": Published(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
    ),
    # of medmnist/info.py, version 3.0.2, in https://github.com/MedMNIST/MedMNIST
    **{
        name: Published(_ZENODO.format(name), md5)
        for name, md5 in {
            "organamnist.npz": "68e3f8846a6bd62f0c9bf841c0d9eacc",
            "organamnist_64.npz": "2dcccc29b88e6da5a01161ef20cda288",
            "organamnist_128.npz": "eeae80d0a227a8d099027e1b3cfd3b60",
            "organamnist_224.npz": "50747347e05c87dd3aaf92c49f9f3170",
            "dermamnist.npz": "0744692d530f8e62ec473284d019b0c7",
            "dermamnist_64.npz": "b70a2f5635c6199aeaa28c31d7202e1f",
            "dermamnist_128.npz": "2defd784463fa5243564e855ed717de1",
            "dermamnist_224.npz": "8974907d8e169bef5f5b96bc506ae45d",
        }.items()
    },
}
"""Data set, or file of MedMNIST -> its publisher's address and its checksum."""


def fetch(name: str, place: Path, size: Size | None = None) -> None:
    """Downloads the file of a data set, unless its files are there, and unpacks an archive.

    Args:
        name: of a data set with a file in `FILES`.
        place: folder that will hold the file, or the folder of the archive; it is created if missing.
        size: (S, S), which chooses a file of MedMNIST; None for the paper's size.

    Raises:
        UsageError: there is no such file; the download fails; its checksum is another; the folder cannot be written; or
            it has a file of this name with another checksum, or a folder of this name without all files.
    """
    import pooch

    key, options = name, {}
    if name in MEDMNIST:
        key, options = file_name(name, size[0] if size else MEDMNIST[name][1]), {"size": size}
    if key not in FILES:
        raise UsageError(
            f"dataset {key} is not published; --download takes one of {', '.join(FILES)}, by name and --image-size"
        )
    published = FILES[key]
    target = place / (published.folder or published.file)
    with suppress(UsageError):  # files are missing
        file = find(name, place, options).files[0]
        if published.folder or pooch.file_hash(str(file), "md5") == published.md5:
            return
    if target.exists():
        raise UsageError(
            f"{target}: lacks files, or has another checksum than the published one; move it elsewhere"
        )
    with drafting(target) as draft:
        archive = _retrieve(published, draft)
        if published.folder:
            options: Any = {} if archive.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(archive, draft, **options)
        for unused in published.left_out:
            (draft / published.folder / unused).unlink()


def fetch_hub_set(name: str, target: Path) -> None:
    """Downloads a set of the Hugging Face hub by the library `datasets`, unless it is there.

    Args:
        name: OWNER/NAME, or OWNER/NAME/CONFIG.
        target: its folder, as `save_to_disk` writes it.

    Raises:
        UsageError: the extra is not installed, the name is another, or the download fails.
    """
    match = re.fullmatch("([^/]+/[^/]+)(?:/([^/]+))?", name)
    if not match:
        raise UsageError(
            f"hf:{name}: no set of the hub; name it hf:OWNER/NAME or hf:OWNER/NAME/CONFIG"
        )
    library = extras.load("datasets", "hf", f"hf:{name}")
    if target.is_dir():
        return
    logging.getLogger("huggingface_hub").setLevel("ERROR")  # its lines on every attempt
    with drafting(target) as draft, reading(f"hf:{name}", "downloaded", "try again later"):
        found = library.load_dataset(match[1], match[2], cache_dir=str(draft / "cache"))
        found.save_to_disk(draft / target.name)


@contextmanager
def drafting(target: Path) -> Iterator[Path]:
    """Yields a folder. Its entry with the name of `target` then takes the place of `target`; the others are removed.

    A folder that another process has meanwhile put in this place stays.

    Raises:
        UsageError: the folder cannot be written.
    """
    folder = target.parent
    with files.writing(folder, "--data-dir"):
        folder.mkdir(parents=True, exist_ok=True)
        # those with content were locked; the lock is free if their process was killed
        for draft in {content.parent for content in folder.glob(".draft-*/[!.]*")}:
            with suppress(OSError), files.claimed(draft / files.LOCK) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(draft)
        temporary = tempfile.TemporaryDirectory(
            prefix=".draft-", dir=folder, ignore_cleanup_errors=True
        )
        with temporary as name, files.claimed(Path(name, files.LOCK)):
            yield Path(name)
            if not target.is_dir():
                os.replace(Path(name, target.name), target)


def _retrieve(published: Published, draft: Path) -> Path:
    """Downloads a file into a folder, verifies its checksum, and returns its path."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")  # its lines on every attempt
    fetcher = pooch.create(
        draft,
        base_url="",
        registry={published.file: f"md5:{published.md5}"},
        urls={published.file: published.url},
        retry_if_failed=RETRIES,
    )
    downloader: Any = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
    try:
        file = Path(fetcher.fetch(published.file, downloader=downloader))
    except (requests.RequestException, ValueError) as error:  # the second is of the checksum
        raise UsageError(
            f"{published.url}: cannot be downloaded ({files.reason(error)}); try again later"
        ) from error
    shutil.copymode(draft / files.LOCK, file)  # pooch's is for this user only
    return file
