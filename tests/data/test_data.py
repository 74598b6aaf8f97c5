"""Readers of digits and .npz, from tiny files in the real formats."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from support.files import RNG, assert_rows, one_line, pixels, rewrite

from fedvg_jax import data
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays, limited
from fedvg_jax.data.readers import cifar_stl10, npz


def test_digits_need_no_folder_and_are_scaled_to_uint8():
    digits = data.load("digits", Path("/nowhere"), None)
    assert digits.x.shape == (1797, 8, 8, 1) and digits.x.dtype == np.uint8
    assert digits.y.dtype == np.int32 and {*digits.y} == {*range(10)} and digits.num_train == 1797
    assert [*np.unique(digits.x)] == [round(v * 255 / 16) for v in range(17)]


@pytest.mark.parametrize("place", ["", "cifar10.npz"])
def test_cifar_npz_is_read_with_built_in_class_names(tmp_path, place):
    x, y = pixels(5, 32, 32, 3), np.array([0, 9, 1, 2, 3], np.uint8)
    parts = {"train_images": x[:3], "train_labels": y[:3]}
    parts |= {"test_images": x[3:], "test_labels": y[3:]}
    np.savez_compressed(tmp_path / "cifar10.npz", **parts)
    arrays = data.load("cifar10", tmp_path / place)
    assert_rows(arrays, x, y)
    assert (arrays.num_train, arrays.class_names) == (3, cifar_stl10.CLASS_NAMES)


@pytest.mark.parametrize("pairs", npz.KEYS, ids=lambda pairs: pairs[0][0])
def test_every_npz_layout_is_pooled_in_order(tmp_path, pairs):
    num = 2 * len(pairs)
    x, y, members = pixels(num, 4, 5), np.arange(num), {"other": np.zeros(3)}
    for i, (images_key, labels_key) in enumerate(pairs):
        part = slice(2 * i, 2 * i + 2)
        members |= {images_key: x[part], labels_key: y[part, None].astype(np.uint8)}
    np.savez_compressed(tmp_path / "set.npz", **members)
    arrays = data.load("npz", tmp_path, tmp_path / "cache")
    assert_rows(arrays, x[..., None], y)
    assert (arrays.y.dtype, arrays.name, arrays.num_train) == (np.int32, "set", 2)
    assert arrays.class_names == tuple(map(str, range(num)))


def test_damaged_npz_raises_only_usage_errors(tmp_path):
    file = tmp_path / "set.npz"
    np.savez_compressed(file, x=pixels(20, 8, 8), y=np.arange(20) % 3)
    intact, expected = file.read_bytes(), data.load("npz", file)
    damages = [intact[:n] for n in (0, 1, 40, len(intact) // 2, len(intact) - 1)]
    for n in range(0, len(intact), 29):
        damages.append(intact[:n] + bytes([intact[n] ^ 0x55]) + intact[n + 1 :])
    for damaged in damages:
        file.write_bytes(damaged)
        try:
            actual = data.load("npz", file)
        except UsageError as error:
            assert str(file) in str(error) and "\n" not in str(error)
        else:  # the changed byte is not used, such as a time stamp
            assert len(damaged) == len(intact)
            assert_rows(actual, expected.x, expected.y)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "f2"])
def test_features_are_floats_of_at_most_32_bits_in_the_byte_order_of_this_machine(tmp_path, dtype):
    x, y = RNG.normal(size=(4, 3)).astype(dtype), np.array([0, 1, 0, 1], ">i8")
    np.savez(tmp_path / "set.npz", x=x, y=y)
    got = data.load("npz", tmp_path / "set.npz")
    assert got.x.dtype.isnative and got.x.dtype.itemsize <= 4
    np.testing.assert_array_equal(got.x, x.astype(np.float32))


def test_spaced_rows_keep_order_class_proportions_groups_and_the_training_set():
    y, groups = np.sort(RNG.integers(0, [[3], [4]], (2, 97))).astype(np.int32)
    x, names = np.arange(97, dtype=np.float32)[:, None], ("a", "b", "c")
    whole = Arrays("rows", x, y, names, 77, groups)
    subset = limited(whole, 60)
    rows = subset.x[:, 0].astype(int)
    assert len(rows) == 60 and {*np.diff(rows)} == {1, 2}
    assert (subset.y == y[rows]).all() and subset.class_names == names
    assert np.abs(np.bincount(subset.y) - np.bincount(y) * 60 / 97).max() <= 1
    assert subset.num_train == (rows < 77).sum()
    np.testing.assert_array_equal(subset.groups, np.unique(groups[rows], return_inverse=True)[1])
    assert all(limited(whole, max_rows) is whole for max_rows in (0, 97, 98))


def test_rows_at_equal_distances_that_lose_a_class_are_refused():
    y = np.arange(2000, dtype=np.int32) % 10
    whole = Arrays("rows", y[:, None], y, tuple("0123456789"), 1500)
    with one_line("max_rows 1000 .*class 1"):
        limited(whole, 1000)


# --- the cache of decoded data sets: names of entries, atomic writes, entries that cannot be read


Y, GROUPS = np.array([[0, 1, 0], [1, 0, 1]], np.int32)
ARRAYS = Arrays("set", pixels(3, 4, 4, 1), Y, ("a", "b"), 2, GROUPS)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.bin"
    file.write_bytes(b"one")
    return file


@pytest.fixture
def decode():
    """Returns `ARRAYS`, and counts its calls."""
    return mock.Mock(return_value=ARRAYS)


def load(source, decode, reader="reader"):
    arrays = cache.cached([source], decode, reader, source.parent / "cache")
    for stored, expected in zip(arrays[:6], ARRAYS, strict=False):
        np.testing.assert_array_equal(stored, expected)
    return arrays


def entries(source):
    return list((source.parent / "cache").iterdir())


def test_data_set_is_decoded_once_and_then_mapped_read_only(source, decode):
    for _ in range(3):
        arrays = load(source, decode)
        assert isinstance(arrays.x, np.memmap) and not arrays.x.flags.writeable
        assert arrays.y.dtype == np.int32
    assert decode.call_count == 1


def test_entry_depends_on_reader_path_and_content(source, decode):
    load(source, decode)
    load(source, decode, reader="other")
    source = source.rename(source.with_name("moved.bin"))
    load(source, decode)
    rewrite(source, b"two")
    load(source, decode)
    assert decode.call_count == 4 == len(entries(source))


def test_source_that_changes_during_decoding_is_decoded_again(source, decode):
    def change():
        source.write_bytes(b"three")
        return ARRAYS

    load(source, change)
    load(source, decode)
    assert decode.call_count == 1


@pytest.mark.parametrize("name", ["x.npy", "about.json"])
def test_entry_that_is_cut_short_is_replaced(source, decode, name):
    load(source, decode)
    (entry,) = entries(source)
    intact = (entry / name).read_bytes()
    (entry / name).write_bytes(intact[: len(intact) // 2])
    load(source, decode)
    assert decode.call_count == 2 and (entry / name).read_bytes() == intact


def test_interrupted_writer_leaves_no_file(source, decode, monkeypatch):
    monkeypatch.setattr(np, "save", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        load(source, decode)
    assert not entries(source)


def test_unwritable_cache_gives_one_line_and_no_error(source, decode, caplog):
    (source.parent / "cache").write_bytes(b"a file where the folder should be")
    load(source, decode)
    assert len(caplog.messages) == 1 and "\n" not in caplog.text.strip()


def test_concurrent_writers_of_one_entry_agree(source, decode, caplog):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: load(source, decode), range(50)))
    assert len(entries(source)) == 1 and not caplog.messages
