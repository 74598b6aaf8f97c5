"""Data sets in their archives: equal to the unpacked folders, or refused with an error of one line."""

import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.files import FOUR, assert_rows, load_twice, usage_error, write, write_folder, write_stl, write_tiny

from fedvg_jax import data
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive
from fedvg_jax.data.readers.cifar_stl10 import STL
from fedvg_jax.data.readers.folders import TINY

pytest.importorskip("PIL.Image", reason="images need Pillow")

SETS = {  # -> (folder of the set, its archive, function that writes the folder, page that every error names)
    "stl10": (STL.folder, STL.archive, write_stl, "stanford.edu"),
    "tinyimagenet": (TINY.folder, TINY.archive, write_tiny, "cs231n.stanford.edu"),
    "covid19": ("Curated X-Rays", "any name.zip", lambda root: write_folder(root, FOUR), "10.17632/9xkhgts2s6"),
}
every_set = pytest.mark.parametrize("name", SETS)
every_zip = pytest.mark.parametrize("name", ["tinyimagenet", "covid19"])


def write_unpacked(root: Path, name: str) -> Path:
    """Writes the data set's folder; returns its parent."""
    folder, _, write_set, _ = SETS[name]
    write_set(root / folder)
    return root


def pack(root: Path, name: str, target: Path, with_folders=True) -> Path:
    """Packs the content of `root` as the data set's archive in the folder `target`."""
    target.mkdir(parents=True, exist_ok=True)
    file = target / SETS[name][1]
    if name == "stl10":
        with tarfile.open(file, "w:gz") as tar:
            for path in [*sorted(root.rglob("*.bin")), write(root / "unlabeled_X.bin", bytes(3_000_000))]:
                tar.add(path, f"{STL.folder}/{path.name}")
        return file
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() or with_folders:
                packed.write(path, path.relative_to(root))
    return file


@every_set
def test_archive_equals_its_folder_and_is_not_unpacked(tmp_path, name):
    folder = write_unpacked(tmp_path / "folder", name)
    half = write(folder / SETS[name][1], b"half of an archive")  # beside its folder, which is preferred
    expected = data.load(name, folder)
    half.unlink()
    file = pack(folder, name, tmp_path / "packed")
    for path in (file.parent, file):
        actual = load_twice(name, path)
        assert_rows(actual, expected.x, expected.y)
        assert actual[3:] == expected[3:] and actual.name == name
    assert {path.name for path in file.parent.iterdir()} <= {file.name, "cache"}


@every_zip
def test_zip_without_folder_members_is_read_and_desktop_files_are_ignored(tmp_path, name):
    folder = write_unpacked(tmp_path / "folder", name)
    expected = data.load(name, folder)
    write(folder / "__MACOSX" / "._odd", b"not read")
    write(folder / SETS[name][0] / ".DS_Store", b"not read")
    actual = data.load(name, pack(folder, name, tmp_path / "packed", with_folders=False))
    np.testing.assert_array_equal(actual.x, expected.x)
    assert actual[3:] == expected[3:]


@every_set
def test_damaged_archive_is_refused_or_harmless_and_never_cached(tmp_path, name):
    """A truncated archive is refused. A flipped bit may change an unused field, such as a date, but no pixel."""
    folder = write_unpacked(tmp_path / "folder", name)
    file = pack(folder, name, tmp_path / "packed")
    intact, expected, num_refused = file.read_bytes(), data.load(name, file), 0
    for end in (0, 9, len(intact) // 2, len(intact) - 10):
        file.write_bytes(intact[:end])
        with usage_error(str(file), SETS[name][3]):
            data.load(name, file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    for offset in range(0, len(intact), len(intact) // 20):
        file.write_bytes(intact[:offset] + bytes([intact[offset] ^ 4]) + intact[offset + 1 :])
        cache = tmp_path / f"cache {offset}"
        try:
            actual = data.load(name, file, cache)
        except UsageError as error:
            assert str(file) in str(error) and "\n" not in str(error) and not cache.exists()
            num_refused += 1
        else:
            assert_rows(actual, expected.x, expected.y)
    assert num_refused > 5
    file.write_bytes(intact)  # as after another download
    np.testing.assert_array_equal(data.load(name, file, tmp_path / "cache").x, expected.x)


@pytest.mark.parametrize(
    ("name", "member", "parts"),
    [
        ("stl10", "stl10_binary/test_y.bin", ["test_y.bin missing"]),
        ("tinyimagenet", "tiny-imagenet-200/wnids.txt", ["holds no wnids.txt"]),
        ("tinyimagenet", "tiny-imagenet-200/val/val_annotations.txt", ["val_annotations.txt", "cannot be read"]),
        ("covid19", "Curated X-Rays/Normal", ["3 folders (COVID-19, Pneumonia-Bacterial, Pneumonia-Viral)"]),
    ],
)
def test_missing_member_of_an_archive_is_named(tmp_path, name, member, parts):
    folder = write_unpacked(tmp_path / "folder", name)
    path = folder / member
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    file = pack(folder, name, tmp_path / "packed")
    with usage_error(str(file), *parts):
        data.load(name, file.parent, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@every_set
def test_member_larger_than_the_limit_is_refused(tmp_path, monkeypatch, name):
    file = pack(write_unpacked(tmp_path / "folder", name), name, tmp_path / "packed")
    monkeypatch.setattr(archive, "MAX_MEMBER", 4)
    with usage_error(str(file), "would be", "bytes", SETS[name][3]):
        data.load(name, file)
