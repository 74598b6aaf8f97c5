"""The cache of decoded data sets: names of entries, atomic writes, entries that cannot be read."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.files import assert_rows

from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays

GROUPS = np.array([1, 0, 1], np.int32)
ARRAYS = Arrays(
    "set", np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1), np.array([0, 1, 0], np.int32), ("a", "b"), 2, GROUPS
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
    assert arrays.y.dtype == np.int32 and (arrays.name, arrays.class_names, arrays.num_train) == ("set", ("a", "b"), 2)
    np.testing.assert_array_equal(arrays.groups, GROUPS)
    return arrays


def test_data_set_is_decoded_once_and_then_mapped_read_only(source, decode):
    for _ in range(3):
        arrays = load(source, decode)
        assert isinstance(arrays.x, np.memmap) and not arrays.x.flags.writeable
    assert len(decode.calls) == 1


def test_entry_depends_on_reader_path_size_and_time(source, decode):
    load(source, decode)
    load(source, decode, reader="other")
    source = source.rename(source.with_name("moved.bin"))
    load(source, decode)
    source.write_bytes(b"three")
    load(source, decode)
    os.utime(source, (0, 0))
    load(source, decode)
    assert len(decode.calls) == 5 == len(list((source.parent / "cache").iterdir()))


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
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: cache.publish(entry, lambda draft: cache._save(ARRAYS, draft)), range(20)))
    assert [path.name for path in (source.parent / "cache").iterdir()] == ["entry"]
    assert not caplog.messages and cache._load(entry) is not None
