"""Readers of the paper's data sets, from tiny files in the real formats, and laws of all readers."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from support.files import (
    FOUR,
    RNG,
    assert_rows,
    load_twice,
    pixels,
    usage_error,
    write,
    write_folder,
    write_stl,
    write_tiny,
)

from fedvg_jax import data
from fedvg_jax.data.readers import cifar_stl10, npz

pytest.importorskip("PIL.Image", reason="images need Pillow")


# --- CIFAR


def python_2_pickle(content: dict) -> bytes:
    """Pickles as Python 2 with NumPy 1 did: protocol 2, byte strings as keys, the old module of `_reconstruct`."""
    pickled = pickle.dumps(content, protocol=2)
    return pickled.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


@pytest.mark.parametrize("name", cifar_stl10.SETS)
def test_python_files_of_cifar_are_read_with_the_training_set_first(tmp_path, name):
    published = cifar_stl10.SETS[name]
    num = 2 * len(published.files)
    x, y = pixels(num, 32, 32, 3), RNG.integers(0, len(published.class_names), num)
    flat = x.transpose(0, 3, 1, 2).reshape(num, -1)
    for i, file in enumerate(published.files):
        part = slice(2 * i, 2 * i + 2)
        batch = {b"batch_label": b"x", published.key: y[part].tolist(), b"data": flat[part]}
        write(tmp_path / "all" / published.folder / file, python_2_pickle(batch))
    for folder in (tmp_path / "all", tmp_path / "all" / published.folder):
        arrays = load_twice(name, folder)
        assert_rows(arrays, x, y)
        assert (arrays.num_train, arrays.class_names) == (num - 2, published.class_names)


@pytest.mark.parametrize(
    "content",
    [b"", pickle.dumps([1]), b"\x80\x02c__builtin__\nprint\nU\x04ran!\x85R."],
    ids=["empty", "a list", "print"],
)
def test_other_pickle_is_refused_in_one_line_and_never_executed(tmp_path, content, capsys):
    for name in cifar_stl10.SETS["cifar100"].files:
        write(tmp_path / name, content)
    with usage_error("train: "):
        data.load("cifar100", tmp_path)
    assert capsys.readouterr().out == ""


# --- STL-10


def test_stl_10_is_transposed_and_labels_start_at_zero(tmp_path):
    x, y = write_stl(tmp_path / cifar_stl10.STL_FOLDER)
    got = load_twice("stl10", tmp_path)
    assert_rows(got, x, y)
    assert got.num_train == 3 and got.class_names[8] == "ship"


# --- MedMNIST


def write_medmnist(file: Path, side: int, depth: tuple = ()):
    """Writes four, two and three images; returns them and their labels, split after split."""
    x, y = pixels(9, side, side, *depth), RNG.integers(0, 7, (9, 1))
    arrays = {}
    for split, part in {"train": slice(4), "val": slice(4, 6), "test": slice(6, 9)}.items():
        arrays |= {f"{split}_images": x[part], f"{split}_labels": y[part]}
    np.savez_compressed(file, **arrays)
    return x.reshape(*x.shape[:3], -1), y[:, 0]


def test_medmnist_pools_all_splits_at_the_papers_and_other_sizes(tmp_path):
    for name, side, depth in (("organamnist", 28, ()), ("dermamnist", 224, (3,))):
        x, y = write_medmnist(tmp_path / npz.file_name(name, side), side, depth)
        other = tmp_path / npz.file_name(name, 64)
        write_medmnist(other, 64, depth)
        got = load_twice(name, tmp_path)
        assert_rows(got, x, y)
        assert got.num_train == 4 and got.class_names == tuple(npz.SETS[name][0])
        assert data.load(name, tmp_path, size=(64, 64)).x.shape[1:3] == (64, 64)
        assert data.load(name, other).x.shape[1:3] == (64, 64)
        with usage_error(f"{name}_64.npz"):
            data.load(name, tmp_path / npz.file_name(name, side), size=(64, 64))


def test_official_pool_lacks_the_validation_split(tmp_path):
    x, _ = write_medmnist(tmp_path / "dermamnist_224.npz", 2, (3,))
    for _ in range(2):  # the two pools have separate cache entries
        whole, official = (
            data.load("dermamnist", tmp_path, tmp_path / "c", splits=s) for s in ("all", "official")
        )
        assert (len(whole.y), official.num_train) == (9, 4)
        np.testing.assert_array_equal(official.x, np.delete(x, [4, 5], 0))


# --- folders of images


@pytest.mark.parametrize("inner", ["", "images"])
def test_x_rays_in_four_folders_are_resized_to_the_published_size(tmp_path, inner):
    _, y = write_folder(tmp_path / "in", FOUR, inner=inner)
    if inner:  # with folders of lung masks, as in the Radiography Database
        write(tmp_path / "in" / "Normal" / "masks" / "0.png", b"not read")
    got = load_twice("covid19", tmp_path / "in")
    assert (
        got.x.shape == (6, 244, 224, 3)
        and got.class_names == tuple(FOUR)
        and got.y.tolist() == y.tolist()
    )
    assert data.load("covid19", tmp_path / "in", size=(8, 8)).x.shape == (6, 8, 8, 3)


def test_tiny_imagenet_follows_the_order_of_its_lists_and_file_names(tmp_path):
    x, y = write_tiny(tmp_path / "in" / "tiny-imagenet-200")
    got = load_twice("tinyimagenet", tmp_path / "in")
    assert_rows(got, x, y)
    assert got.num_train == 6 and got.class_names == ("n02", "n01")


# --- all readers

DAMAGED = [
    ("stl10", "train_X.bin", bytes(100), "train_X.bin"),
    ("stl10", "train_y.bin", bytes([1, 2]), "x has 3 rows and y 2"),
    ("tinyimagenet", "wnids.txt", None, "wnids.txt"),
    ("tinyimagenet", "wnids.txt", b"n02\nn01\nn03", "n03"),
    ("tinyimagenet", "val/images/val_1.JPEG", None, "val_annotations.txt"),
    ("tinyimagenet", "val/val_annotations.txt", b"val_0.JPEG\tn01", "val_annotations.txt"),
]


@pytest.mark.parametrize(("name", "file", "content", "part"), DAMAGED)
def test_damaged_file_or_one_that_contradicts_the_lists_is_named(
    tmp_path, name, file, content, part
):
    {"stl10": write_stl, "tinyimagenet": write_tiny}[name](tmp_path)
    (tmp_path / file).unlink() if content is None else write(tmp_path / file, content)
    with usage_error(part):
        data.load(name, tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", [*data.SOURCES, "tfds:mnist"])
def test_missing_or_wrong_data_are_refused_and_nothing_is_cached(tmp_path, name):
    if name.startswith("tfds:"):
        pytest.importorskip("tensorflow_datasets", reason="prepared sets need the tfds extra")
    with usage_error(f"dataset {name} needs", "--data-dir DIR"):
        data.load(name)
    file = write(tmp_path / "a file", b"not a data set")
    for path in (tmp_path / "none", tmp_path, file):
        with usage_error(str(path)):
            data.load(name, path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
