"""Readers of the paper's data sets, from tiny files in the real formats, and invariants of all readers."""

import pickle
import tarfile
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
from fedvg_jax.data.partitions import exchange
from fedvg_jax.data.readers import cifar_stl10, medmnist
from fedvg_jax.data.readers.cifar_stl10 import STL
from fedvg_jax.data.readers.folders import TINY

pytest.importorskip("PIL.Image", reason="images need Pillow")


# --- STL-10


def test_stl_10_is_transposed_and_labels_start_at_zero(tmp_path):
    x, y = write_stl(tmp_path / STL.folder)
    got = load_twice("stl10", tmp_path)
    assert_rows(got, x, y)
    assert got.num_train == 3 and got.class_names[8] == "ship"


# --- MedMNIST


def write_medmnist(file: Path, side: int, depth: tuple = (), counts=(4, 2, 3)):
    arrays = {}
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        arrays |= {
            f"{split}_images": pixels(count, side, side, *depth),
            f"{split}_labels": RNG.integers(0, 7, (count, 1)),
        }
    np.savez_compressed(file, **arrays)
    return arrays


def test_medmnist_pools_all_splits_at_the_papers_and_other_sizes(tmp_path):
    for name, side, depth in (("organamnist", 28, ()), ("dermamnist", 224, (3,))):
        arrays = write_medmnist(tmp_path / medmnist.file_name(name, side), side, depth)
        write_medmnist(tmp_path / medmnist.file_name(name, 64), 64, depth)
        got = load_twice(name, tmp_path)
        assert got.x.shape == (9, side, side, *(depth or (1,))) and got.num_train == 4
        assert got.y.tolist() == [int(v) for s in ("train", "val", "test") for v in arrays[f"{s}_labels"][:, 0]]
        assert len(got.class_names) == {"organamnist": 11, "dermamnist": 7}[name]
        assert data.load(name, tmp_path, size=(64, 64)).x.shape[1:3] == (64, 64)
        assert data.load(name, tmp_path / medmnist.file_name(name, 64)).x.shape[1:3] == (64, 64)


def test_official_pool_lacks_the_validation_split(tmp_path):
    arrays = write_medmnist(tmp_path / "dermamnist_224.npz", 2, (3,))
    for _ in range(2):  # the two pools have separate cache entries
        whole, official = (data.load("dermamnist", tmp_path, tmp_path / "c", splits=s) for s in ("all", "official"))
        assert (len(whole.y), len(official.y), official.num_train) == (9, 7, 4)
    np.testing.assert_array_equal(official.x[4:], arrays["test_images"])
    renamed = {
        f"{'xy'[part == 'labels']}_{split}": a for name, a in arrays.items() for split, part in [name.split("_")]
    }
    np.savez(tmp_path / "dermamnist_224.npz", **renamed)
    assert len(data.load("dermamnist", tmp_path, splits="official").y) == 7


def test_mapped_labels_are_a_list_of_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4, 4), np.uint8))
    np.save(tmp_path / "y.npy", np.array(3))
    with usage_error("y.npy: must hold integers [T], got int64 []"):
        data.load("npz", tmp_path)


def test_missing_medmnist_file_or_size_is_refused(tmp_path):
    with usage_error(str(tmp_path), "dermamnist_224.npz", "medmnist.com"):
        data.load("dermamnist", tmp_path)
    write_medmnist(tmp_path / "dermamnist.npz", 28, (3,))
    with usage_error("dermamnist_224.npz", "holds dermamnist.npz", "--image-size"):
        data.load("dermamnist", tmp_path)
    with usage_error("28, 64, 128, 224", "(30, 30)"):
        data.load("dermamnist", tmp_path, size=(30, 30))
    (tmp_path / "dermamnist.npz").rename(tmp_path / "dermamnist_64.npz")
    with usage_error("dermamnist_64.npz", "28 x 28", "64 x 64"):
        data.load("dermamnist", tmp_path, size=(64, 64))


# --- COVID-19


@pytest.mark.parametrize(("outer", "inner"), [(".", ""), ("Curated X-Ray Dataset", "images")])
def test_x_rays_in_four_folders_are_resized_to_the_published_size(tmp_path, outer, inner):
    _, y = write_folder(tmp_path / "in" / outer, FOUR, inner=inner)
    if inner:  # with folders of lung masks, as in the Radiography Database
        write(tmp_path / "in" / outer / "Normal" / "masks" / "0.png", b"not read")
    got = load_twice("covid19", tmp_path / "in")
    assert got.x.shape == (6, 244, 224, 3) and got.class_names == tuple(FOUR) and got.y.tolist() == y.tolist()
    assert data.load("covid19", tmp_path / "in", size=(8, 8)).x.shape == (6, 8, 8, 3)
    write_folder(tmp_path / "three", {"a": 1, "b": 1, "c": 1})
    with usage_error(str(tmp_path), "3 folders (a, b, c)", "10.17632/9xkhgts2s6"):
        data.load("covid19", tmp_path / "three")


@pytest.mark.parametrize(("kind", "first"), [("bytes", True), ("numbers 0..255", False), ("numbers 0..1", True)])
def test_published_arrays_are_read_as_bytes(tmp_path, first, kind):
    """With the channels first or last."""
    x, y = pixels(300, 5, 4, 3), np.arange(300) % 4
    x[0, 0, 0] = 255
    array = {"bytes": x, "numbers 0..255": x.astype(np.float32), "numbers 0..1": (x / 255).astype(np.float32)}[kind]
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "xdata.npy", array.transpose(0, 3, 1, 2) if first else array)
    np.save(tmp_path / "in" / "ydata.npy", y.astype(np.float64)[:, None] if first else y)
    got = load_twice("covid19", tmp_path / "in")
    assert_rows(got, x, y)


X = np.zeros((2, 3, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "parts"),
    [
        (X, None, ["ydata.npy missing"]),
        (X, [0, 4], ["0..3", "0..4"]),
        (X, [np.nan, 1], ["ydata.npy", "whole numbers"]),
        (X, [0, 1e300], ["ydata.npy", "whole numbers"]),
        (X[0, 0], [0, 1], ["xdata.npy", "[T, H, W, D]"]),
        (X - 1.0, [0, 1], ["xdata.npy", "0..255 or 0..1", "-1"]),
        (np.array([{}, {}], object), [0, 1], ["xdata.npy", "plain array"]),
    ],
)
def test_file_of_malformed_published_arrays_is_named(tmp_path, x, y, parts):
    np.save(tmp_path / "xdata.npy", x, allow_pickle=True)
    if y is not None:
        np.save(tmp_path / "ydata.npy", np.array(y))
    with usage_error(*parts):
        data.load("covid19", tmp_path)


# --- Tiny ImageNet


def test_tiny_imagenet_follows_the_order_of_its_lists_and_file_names(tmp_path):
    x, y = write_tiny(tmp_path / "in" / TINY.folder)
    got = load_twice("tinyimagenet", tmp_path / "in")
    assert_rows(got, x, y)
    assert got.num_train == 6 and got.class_names == ("boa", "goldfish")


# --- all readers


DAMAGED = [
    ("stl10", "train_X.bin", bytes(100), ["train_X.bin", "100 bytes", "27648"]),
    ("stl10", "train_y.bin", bytes([1, 11, 2]), ["train_y.bin", "got 11"]),
    ("stl10", "test_X.bin", None, ["test_X.bin missing", "stanford.edu"]),
    ("tinyimagenet", "wnids.txt", None, ["wnids.txt", "cs231n.stanford.edu"]),
    ("tinyimagenet", "wnids.txt", b"\xff\xfe", ["wnids.txt", "not a text file"]),
    ("tinyimagenet", "wnids.txt", b"n02\nn01\nn03", ["n03", "no such folder"]),
    ("tinyimagenet", "train/n01/images/n01_2.JPEG", None, ["n01", "2 images, others have 3"]),
    ("tinyimagenet", "val/images/val_1.JPEG", None, ["val_annotations.txt", "val_1.JPEG"]),
    ("tinyimagenet", "val/val_annotations.txt", b"val_0.JPEG\tn01", ["val_annotations.txt", "val_1.JPEG"]),
]


@pytest.mark.parametrize(("name", "file", "content", "parts"), DAMAGED)
def test_damaged_file_or_one_that_contradicts_the_lists_is_named(tmp_path, name, file, content, parts):
    {"stl10": write_stl, "tinyimagenet": write_tiny}[name](tmp_path)
    (tmp_path / file).unlink() if content is None else write(tmp_path / file, content)
    with usage_error(*parts):
        data.load(name, tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", [*data.SOURCES, "tfds:mnist"])
def test_missing_or_wrong_data_are_refused_and_nothing_is_cached(tmp_path, name):
    with usage_error(f"dataset {name} needs --data-dir DIR"):
        data.load(name)
    file = write(tmp_path / "a file", b"not a data set")
    for path in (tmp_path / "none", tmp_path, file):
        with usage_error(str(path)):
            data.load(name, path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "option"),
    [("digits", {"size": (8, 8)}), ("cifar10", {"size": (8, 8)}), ("covid19", {"splits": "official"})],
)
def test_unsupported_option_of_a_data_set_is_refused(tmp_path, name, option):
    with usage_error(f"dataset {name} does not take --", "leave it out"):
        data.load(name, tmp_path, **option)


def test_npz_with_the_records_of_a_large_archive_is_read(tmp_path, monkeypatch):
    """zipfile writes them from 2 GiB or 65,536 members on."""
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 10)
    np.savez(tmp_path / "large.npz", x=np.arange(48, dtype=np.uint8).reshape(3, 4, 4), y=np.array([0, 1, 2]))
    assert data.load("npz", tmp_path).y.tolist() == [0, 1, 2]


def test_npz_larger_than_memory_is_refused_before_unpacking(tmp_path, monkeypatch):
    members = {"y": np.zeros(2000, int), "train": np.zeros(2_000_000, int)}
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2000, 64, 64), np.uint8), **members)
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a machine with 1 MB of memory
    with usage_error("bomb.npz", "GiB"):
        data.load("npz", tmp_path)
    with usage_error("bomb.npz", "GiB"):
        exchange.read(tmp_path / "bomb.npz")


def python_2_pickle(content: dict) -> bytes:
    """Pickles as Python 2 with NumPy 1 did: protocol 2, byte strings as keys, the old module of `_reconstruct`."""
    pickled = pickle.dumps(content, protocol=2)
    return pickled.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar(root: Path, name: str, form: int, rows=2):
    """Writes the files of a published format into its folder; returns their (x, y), in order."""
    kind, num_classes = cifar_stl10.SETS[name].forms[form], len(cifar_stl10.SETS[name].class_names)
    total = rows * len(kind.files)
    x, y = pixels(total, 32, 32, 3), RNG.integers(0, num_classes, total).astype(np.uint8)
    flat = x.transpose(0, 3, 1, 2).reshape(total, -1)
    coarse = y[:, None] // 5
    for i, file in enumerate(kind.files):
        part = slice(i * rows, (i + 1) * rows)
        if form == 0:
            labels = [y[:, None]] if name == "cifar10" else [coarse, y[:, None]]
            content = np.concatenate([*labels, flat], 1)[part].tobytes()
        else:
            key = b"labels" if name == "cifar10" else b"fine_labels"
            batch = {b"batch_label": b"x", key: y[part].tolist(), b"data": flat[part], b"filenames": [b"a.png"] * rows}
            content = python_2_pickle(batch)
        write(root / kind.folder / file, content)
    return x, y


def pack(root: Path, name: str, form: int) -> Path:
    """Packs the folder as its official archive."""
    kind = cifar_stl10.SETS[name].forms[form]
    with tarfile.open(root / kind.archive, "w:gz") as tar:
        tar.add(root / kind.folder, kind.folder)
    return root / kind.archive


every_form = pytest.mark.parametrize(("name", "form"), [(n, f) for n in cifar_stl10.SETS for f in (0, 1)])


@every_form
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_every_format_of_cifar_is_read_with_the_training_set_first(tmp_path, name, form, packed):
    x, y = write_cifar(tmp_path / "all", name, form)
    folder = tmp_path / "all"
    if packed:
        (tmp_path / "archive").mkdir()
        folder = (
            pack(folder, name, form).rename(tmp_path / "archive" / cifar_stl10.SETS[name].forms[form].archive).parent
        )
    arrays = load_twice(name, folder)
    assert_rows(arrays, x, y)
    assert arrays.num_train == len(x) - 2 and arrays.class_names == cifar_stl10.SETS[name].class_names
    if packed:  # nothing is unpacked, and the path of the archive is accepted too
        assert len(list(folder.iterdir())) == 1
        np.testing.assert_array_equal(data.load(name, next(folder.iterdir())).x, x)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ([1], ["'data'"]),
        ({b"data": np.zeros((1, 3072), np.float32), b"labels": [1]}, ["dtype 'f4'", "only 'u1'"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, ["1 images but 2 labels"]),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, ["0..9, got -1"]),
    ],
)
def test_malformed_python_file_is_named(tmp_path, content, parts):
    write_cifar(tmp_path, "cifar10", 1)
    write(tmp_path / "cifar-10-batches-py" / "data_batch_3", python_2_pickle(content))
    with usage_error("data_batch_3", *parts):
        data.load("cifar10", tmp_path)


def test_features_that_32_bits_cannot_hold_are_refused(tmp_path):
    for value in (1e39, np.nan):
        np.savez(tmp_path / "f.npz", x=np.array([[1.0], [value]]), y=np.array([0, 1]))
        with usage_error("features of row 1 are not finite in 32 bits"):
            data.load("npz", tmp_path)


@pytest.mark.parametrize("name", ["", "rows.csv"])
def test_a_table_in_text_is_refused_with_the_way_in(tmp_path, name):
    write(tmp_path / "rows.csv", b"a,label\n1,0\n")
    with usage_error("rows.csv", "pandas.read_csv or numpy.loadtxt", "data=(x, y)"):
        data.load("npz", tmp_path / name)


def test_features_in_the_byte_order_of_another_machine_are_converted(tmp_path):
    x, y = RNG.normal(size=(4, 3)).astype(">f4"), np.array([0, 1, 0, 1], ">i8")
    np.savez(tmp_path / "set.npz", x=x, y=y)
    got = data.load("npz", tmp_path / "set.npz")
    assert got.x.dtype.isnative
    np.testing.assert_array_equal(got.x, x)
