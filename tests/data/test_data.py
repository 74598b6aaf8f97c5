"""Readers of digits and .npz, from tiny files in the real formats."""

import os
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.files import assert_rows, rewrite, usage_error

from fedvg_jax import data
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays, limited
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
    assert (
        digits.x.shape == (1797, 8, 8, 1) and digits.x.dtype == np.uint8 and digits.x.max() == 255
    )
    assert (
        digits.y.dtype == np.int32 and set(digits.y) == set(range(10)) and digits.num_train == 1797
    )
    assert set(np.unique(digits.x)) == {round(v * 255 / 16) for v in range(17)}


@pytest.mark.parametrize("as_file", [False, True])
def test_cifar_npz_is_read_with_built_in_class_names(tmp_path, as_file):
    x, y = images(5, 32, 32, 3), np.array([0, 9, 1, 2, 3], np.uint8)
    file = write_npz(
        tmp_path / "cifar10.npz",
        train_images=x[:3],
        train_labels=y[:3],
        test_images=x[3:],
        test_labels=y[3:],
    )
    arrays = data.load("cifar10", file if as_file else tmp_path)
    assert_rows(arrays, x, y)
    assert (arrays.num_train, arrays.class_names) == (3, cifar_stl10.CLASS_NAMES)


@pytest.mark.parametrize("pairs", npz.KEYS, ids=lambda pairs: pairs[0][0])
@pytest.mark.parametrize(
    ("grey", "column", "dtype"), [(True, True, np.uint8), (False, False, np.int64)]
)
def test_every_npz_layout_is_pooled_in_order(tmp_path, pairs, grey, column, dtype):
    x, y = (
        images(2 * len(pairs), 4, 5, *(() if grey else (3,))),
        np.arange(2 * len(pairs), dtype=dtype),
    )
    members = {}
    for i, (images_key, labels_key) in enumerate(pairs):
        part = slice(2 * i, 2 * i + 2)
        members |= {images_key: x[part], labels_key: y[part, None] if column else y[part]}
    write_npz(tmp_path / "set.npz", **members, other=np.zeros(3))
    arrays = data.load("npz", tmp_path, tmp_path / "cache")
    assert_rows(arrays, x[..., None] if grey else x, y)
    assert arrays.y.dtype == np.int32 and arrays.name == "set"
    assert arrays.num_train == 2 and arrays.class_names == tuple(map(str, range(2 * len(pairs))))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damaged_npz_raises_only_usage_errors(tmp_path, method):
    plain = write_npz(tmp_path / "plain.npz", x=images(20, 8, 8), y=np.arange(20) % 3)
    file = tmp_path / "set.npz"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(file, "w", method) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    intact = file.read_bytes()
    expected = data.load("npz", file)
    truncated = [intact[:n] for n in (0, 1, 40, len(intact) // 2, len(intact) - 1)]
    flipped = [
        intact[:n] + bytes([intact[n] ^ 0x55]) + intact[n + 1 :] for n in range(0, len(intact), 29)
    ]
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


@pytest.mark.parametrize("dtype", [">f4", ">f8", "f2"])
def test_features_are_floats_of_at_most_32_bits_in_the_byte_order_of_this_machine(tmp_path, dtype):
    x, y = RNG.normal(size=(4, 3)).astype(dtype), np.array([0, 1, 0, 1], ">i8")
    np.savez(tmp_path / "set.npz", x=x, y=y)
    got = data.load("npz", tmp_path / "set.npz")
    assert got.x.dtype.isnative and got.x.dtype.itemsize <= 4
    np.testing.assert_array_equal(got.x, x.astype(np.float32))


def test_spaced_rows_keep_order_class_proportions_groups_and_the_training_set():
    rng = np.random.default_rng(0)
    for total, max_rows in ((20, 12), (97, 96), (100, 30), (1000, 100)):
        y = np.sort(rng.integers(0, 3, total)).astype(np.int32)
        groups = np.sort(rng.integers(0, 4, total)).astype(np.int32)
        whole = Arrays(
            "rows",
            np.arange(total, dtype=np.float32)[:, None],
            y,
            ("a", "b", "c"),
            total * 4 // 5,
            groups,
        )
        subset = limited(whole, max_rows)
        rows = subset.x[:, 0].astype(int)
        assert len(rows) == max_rows and (np.diff(rows) > 0).all()
        assert len(set(np.diff(rows))) <= 2, "distances differ by more than one row"
        assert (subset.y == y[rows]).all() and subset.class_names == whole.class_names
        assert (
            abs(
                np.bincount(subset.y, minlength=3) - np.bincount(y, minlength=3) * max_rows / total
            ).max()
            <= 1
        )
        assert subset.num_train == (rows < whole.num_train).sum()
        assert subset.groups is not None
        assert set(subset.groups) == set(range(len(set(groups[rows])))), (
            "numbers of groups have gaps"
        )
        assert len({*zip(subset.groups.tolist(), groups[rows].tolist(), strict=True)}) == len(
            set(subset.groups)
        )
    assert all(limited(whole, max_rows) is whole for max_rows in (0, total, total + 1))


ALTERNATING = np.arange(2000, dtype=np.int32) % 10
SHUFFLED = np.random.default_rng(0).permutation(ALTERNATING)


def in_order(y, groups):
    names = tuple(map(str, range(10)))
    return Arrays("rows", np.arange(2000.0)[:, None], y, names, 1500, groups)


@pytest.mark.parametrize(
    ("y", "groups", "max_rows"),
    [
        (ALTERNATING, None, 1000),
        (ALTERNATING, None, 200),
        (SHUFFLED, ALTERNATING, 200),
        (np.where(np.arange(2000) % 2, SHUFFLED, 0), None, 1000),
        (np.where(np.arange(2000) == 1, 9, SHUFFLED % 9), None, 500),
    ],
    ids=["classes", "one class", "groups", "a share", "a single row"],
)
def test_rows_in_a_periodic_order_are_drawn_with_a_seed_and_not_spaced(y, groups, max_rows):
    whole = in_order(y.astype(np.int32), groups)
    with usage_error(f"max_rows {max_rows}", "--max-rows-seed"):
        limited(whole, max_rows)
    drawn, other = (limited(whole, max_rows, seed) for seed in (0, 1))
    rows = drawn.x[:, 0].astype(int)
    assert (
        len(rows) == max_rows
        and (np.diff(rows) > 0).all()
        and drawn.num_train == (rows < 1500).sum()
    )
    assert (drawn.y == whole.y[rows]).all() and (rows != other.x[:, 0]).any()
    np.testing.assert_array_equal(rows, limited(whole, max_rows, 0).x[:, 0])


def test_rows_in_a_random_order_are_spaced():
    for max_rows in (200, 700, 1000, 1999):
        assert len(limited(in_order(SHUFFLED, SHUFFLED), max_rows).y) == max_rows


# --- the cache of decoded data sets: names of entries, atomic writes, entries that cannot be read


GROUPS = np.array([1, 0, 1], np.int32)
ARRAYS = Arrays(
    "set",
    np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1),
    np.array([0, 1, 0], np.int32),
    ("a", "b"),
    2,
    GROUPS,
)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.bin"
    file.write_bytes(b"one")
    return file


@pytest.fixture
def decode():
    """Returns `ARRAYS`, and appends to its list of calls."""

    def decode():
        decode.calls.append(1)
        return ARRAYS

    decode.calls = []
    return decode


def load(source, decode, reader="reader"):
    arrays = cache.cached(reader, [source], decode, source.parent / "cache")
    assert_rows(arrays, ARRAYS.x, ARRAYS.y)
    assert arrays.y.dtype == np.int32 and (arrays.name, arrays.class_names, arrays.num_train) == (
        "set",
        ("a", "b"),
        2,
    )
    np.testing.assert_array_equal(arrays.groups, GROUPS)
    return arrays


def test_data_set_is_decoded_once_and_then_mapped_read_only(source, decode):
    for _ in range(3):
        arrays = load(source, decode)
        assert isinstance(arrays.x, np.memmap) and not arrays.x.flags.writeable
    assert len(decode.calls) == 1


def test_entry_depends_on_reader_path_and_content(source, decode):
    load(source, decode)
    load(source, decode, reader="other")
    source = source.rename(source.with_name("moved.bin"))
    load(source, decode)
    rewrite(source, b"two")
    load(source, decode)
    assert len(decode.calls) == 4 == len(list((source.parent / "cache").iterdir()))
    os.utime(source, (0, 0))
    load(source, decode)
    assert len(decode.calls) == 4


def test_source_that_changes_during_decoding_is_not_cached(source):
    def decode():
        source.write_bytes(b"three")
        return ARRAYS

    cache.cached("reader", [source], decode, source.parent / "cache")
    assert not (source.parent / "cache").exists()


@pytest.mark.parametrize("name", ["x.npy", "about.json"])
def test_entry_that_is_cut_short_is_replaced(source, decode, name):
    load(source, decode)
    (entry,) = (source.parent / "cache").iterdir()
    intact = (entry / name).read_bytes()
    (entry / name).write_bytes(intact[: len(intact) // 2])
    load(source, decode)
    assert len(decode.calls) == 2 and (entry / name).read_bytes() == intact


def test_interrupted_writer_leaves_no_file(tmp_path):
    def write(draft):
        draft.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.publish(tmp_path / "cache" / "file", write)
    assert not list((tmp_path / "cache").iterdir())


def test_unwritable_cache_gives_one_line_and_no_error(source, decode, caplog):
    (source.parent / "cache").write_bytes(b"a file where the folder should be")
    load(source, decode)
    assert len(decode.calls) == 1 and len(caplog.messages) == 1 and "\n" not in caplog.text.strip()


def test_concurrent_writers_of_one_entry_agree(source, caplog):
    entry = source.parent / "cache" / "entry"
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda _: cache.publish(entry, lambda draft: cache._save(ARRAYS, draft)), range(150)
            )
        )
    assert [path.name for path in (source.parent / "cache").iterdir()] == ["entry"]
    assert not caplog.messages and cache._load(entry) is not None
