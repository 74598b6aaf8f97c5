"""Readers of digits and .npz, from tiny files in the real formats."""

import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.files import assert_rows, usage_error

from fedvg_jax import data
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, spaced
from fedvg_jax.data.readers import cifar_stl10, npz

RNG = np.random.default_rng(0)


def images(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def write_npz(file: Path, **members):
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **members)
    return file


def test_digits_need_no_folder_and_are_scaled_to_uint8():
    digits = data.load("digits", Path("/nowhere"), None)
    assert digits.x.shape == (1797, 8, 8, 1) and digits.x.dtype == np.uint8 and digits.x.max() == 255
    assert digits.y.dtype == np.int32 and set(digits.y) == set(range(10)) and digits.num_train == 1797
    assert set(np.unique(digits.x)) == {round(v * 255 / 16) for v in range(17)}


def test_npz_of_two_layouts_is_refused(tmp_path):
    labels = np.arange(5)
    file = write_npz(tmp_path / "two.npz", x=images(5), y=labels, x_train=images(5), y_train=labels)
    with pytest.raises(UsageError, match=r"two\.npz: holds x_train, y_train and x, y, which are several data sets"):
        npz.load(file)


@pytest.mark.parametrize("as_file", [False, True])
def test_cifar_npz_is_read_with_built_in_class_names(tmp_path, as_file):
    x, y = images(5, 32, 32, 3), np.array([0, 9, 1, 2, 3], np.uint8)
    file = write_npz(
        tmp_path / "cifar10.npz", train_images=x[:3], train_labels=y[:3], test_images=x[3:], test_labels=y[3:]
    )
    arrays = data.load("cifar10", file if as_file else tmp_path)
    assert_rows(arrays, x, y)
    assert (arrays.num_train, arrays.class_names) == (3, cifar_stl10.CLASS_NAMES)


def test_other_images_are_not_taken_for_cifar(tmp_path):
    file = write_npz(tmp_path / "mine.npz", x=images(5, 8, 8, 3), y=np.arange(5))
    with pytest.raises(UsageError, match=r"images of cifar10 are 32 x 32 .* got \[5, 8, 8, 3\]; use --dataset npz"):
        data.load("cifar10", file)


@pytest.mark.parametrize("pairs", npz.KEYS, ids=lambda pairs: pairs[0][0])
@pytest.mark.parametrize(("grey", "column", "dtype"), [(True, True, np.uint8), (False, False, np.int64)])
def test_every_npz_layout_is_pooled_in_order(tmp_path, pairs, grey, column, dtype):
    x, y = images(2 * len(pairs), 4, 5, *(() if grey else (3,))), np.arange(2 * len(pairs), dtype=dtype)
    members = {}
    for i, (images_key, labels_key) in enumerate(pairs):
        part = slice(2 * i, 2 * i + 2)
        members |= {images_key: x[part], labels_key: y[part, None] if column else y[part]}
    write_npz(tmp_path / "set.npz", **members, other=np.zeros(3))
    arrays = data.load("npz", tmp_path, tmp_path / "cache")
    assert_rows(arrays, x[..., None] if grey else x, y)
    assert arrays.y.dtype == np.int32 and arrays.name == "set"
    assert arrays.num_train == 2 and arrays.class_names == tuple(map(str, range(2 * len(pairs))))


def test_error_of_an_unknown_name_or_missing_folder_names_a_remedy(tmp_path):
    with usage_error("digits, breast_cancer, ", "cifar10, ", "npz", "tfds:NAME", "'mnist'"):
        data.load("mnist")
    files = "data_batch_1.bin", "cs.toronto.edu/~kriz/cifar.html"
    with usage_error("cifar10 needs --data-dir DIR", *files):
        data.load("cifar10")
    for folder in (tmp_path, tmp_path / "none"):
        with usage_error(str(folder), *files):
            data.load("cifar10", folder)
        with usage_error(str(folder), "train_images"):
            data.load("npz", folder)


def test_folder_of_several_npz_files_is_refused(tmp_path):
    for name in ("a", "b"):
        write_npz(tmp_path / f"{name}.npz", x=images(1, 2, 2), y=np.array([0]))
    with usage_error("a.npz, b.npz", "--data-dir FILE"):
        data.load("npz", tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damaged_npz_raises_only_usage_errors(tmp_path, method):
    plain = write_npz(tmp_path / "plain.npz", x=images(20, 8, 8), y=np.arange(20) % 3)
    file = tmp_path / "set.npz"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(file, "w", method) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    intact = file.read_bytes()
    expected = data.load("npz", file)
    truncated = [intact[:n] for n in (0, 1, 40, len(intact) // 2, len(intact) - 1)]
    flipped = [intact[:n] + bytes([intact[n] ^ 0x55]) + intact[n + 1 :] for n in range(0, len(intact), 29)]
    for damaged in truncated + flipped:
        file.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # zipfile's, about duplicate names
                actual = data.load("npz", file)
        except UsageError as error:
            assert str(file) in str(error) and "\n" not in str(error)
        else:  # the changed byte is not used, such as a time stamp
            assert damaged in flipped
            assert np.array_equal(actual.x, expected.x) and np.array_equal(actual.y, expected.y)


X, Y = np.zeros((3, 4, 4), np.uint8), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        ({"x": X}, ["train_images", "got x"]),
        ({"x": X, "y": Y, "class_names": np.array(["a"], object)}, ["plain arrays"]),
        ({"x": X, "y": Y[:2]}, ["3 images but 2 labels"]),
        ({"x": X.astype(np.float32), "y": Y}, ["uint8", "float32"]),
        ({"x": X, "y": np.stack([Y, Y], 1)}, ["labels must be integers [N] or [N, 1]", "[3, 2]"]),
        ({"x": X, "y": Y - 1}, ["labels must be 0..1", "-1"]),
        ({"x": X, "y": Y, "class_names": np.array(["a", "b"])}, ["labels must be 0..1", "0..2"]),
        ({"x_train": X, "y_train": Y, "x_test": X[:, 1:], "y_test": Y}, ["one size", "(3, 4, 1)", "(4, 4, 1)"]),
    ],
)
def test_malformed_arrays_are_refused_in_one_line_with_the_file(tmp_path, members, parts):
    file = write_npz(tmp_path / "bad.npz", **members)
    with usage_error(str(file), *parts):
        data.load("npz", file)


def test_spaced_rows_keep_order_class_proportions_groups_and_the_training_set():
    rng = np.random.default_rng(0)
    for total, max_rows in ((10, 4), (97, 96), (100, 7), (1000, 100), (5, 1)):
        y = np.sort(rng.integers(0, 3, total)).astype(np.int32)
        groups = np.sort(rng.integers(0, 4, total)).astype(np.int32)
        whole = Arrays("rows", np.arange(total, dtype=np.float32)[:, None], y, ("a", "b", "c"), total * 4 // 5, groups)
        subset = spaced(whole, max_rows)
        rows = subset.x[:, 0].astype(int)
        assert len(rows) == max_rows and (np.diff(rows) > 0).all()
        assert len(set(np.diff(rows))) <= 2, "distances differ by more than one row"
        assert (subset.y == y[rows]).all() and subset.class_names == whole.class_names
        assert abs(np.bincount(subset.y, minlength=3) - np.bincount(y, minlength=3) * max_rows / total).max() <= 1
        assert subset.num_train == (rows < whole.num_train).sum()
        assert subset.groups is not None
        assert set(subset.groups) == set(range(len(set(groups[rows])))), "numbers of groups have gaps"
        assert len({*zip(subset.groups.tolist(), groups[rows].tolist(), strict=True)}) == len(set(subset.groups))
    assert all(spaced(whole, max_rows) is whole for max_rows in (0, 5, 6))
