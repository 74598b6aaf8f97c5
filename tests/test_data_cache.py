"""The cache of decoded sets: keyed by content, published whole, never trusted when damaged."""

import json
import os
import threading
import warnings

import numpy as np
import pytest

from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.types import UsageError

ARRAYS = Arrays("set", np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1), np.array([0, 1, 0], np.int32), ("a", "b"), 2)


class Decoder:
    """Counts how often the source was decoded."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.bin"
    file.write_bytes(b"one")
    return file


@pytest.fixture
def decode():
    return Decoder()


def load(source, decode, reader="reader"):
    got = cache.cached(reader, [source], decode, source.parent / "cache")
    np.testing.assert_array_equal(got.x, ARRAYS.x)
    np.testing.assert_array_equal(got.y, ARRAYS.y)
    assert got.y.dtype == np.int32 and (got.name, got.class_names, got.num_train) == ("set", ("a", "b"), 2)
    return got


def entry_of(source):
    (entry,) = (source.parent / "cache").iterdir()
    return entry


def test_a_set_is_decoded_once_and_then_mapped_read_only(source, decode):
    for _ in range(3):
        got = load(source, decode)
        assert isinstance(got.x, np.memmap) and not got.x.flags.writeable
    assert decode.calls == 1


def test_an_entry_is_named_by_content_and_reader_not_by_path_or_time(source, decode):
    load(source, decode)
    moved = source.rename(source.with_name("moved.bin"))
    os.utime(moved, (0, 0))
    load(moved, decode)
    assert decode.calls == 1
    load(moved, decode, reader="other")
    assert decode.calls == 2
    moved.write_bytes(b"two")
    load(moved, decode)
    assert decode.calls == 3


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing"])
def test_a_damaged_entry_is_rebuilt(source, decode, name, damage):
    load(source, decode)
    file = entry_of(source) / name
    good = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        bad = {"cut": good[:-1], "flipped": good[:-1] + b"\x55", "empty": b""}[damage]
        file.write_bytes(bad)
    load(source, decode)
    assert decode.calls == 2 and (entry_of(source) / name).read_bytes() == good


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"files": {}}', '{"files": {"x.npy": 1}}', '{"files": null}'])
def test_a_manifest_of_another_shape_is_not_trusted(source, decode, text):
    load(source, decode)
    (entry_of(source) / "manifest.json").write_text(text)
    load(source, decode)
    assert decode.calls == 2 and json.loads((entry_of(source) / "manifest.json").read_text())["num_train"] == 2


def test_what_a_killed_writer_leaves_is_ignored_and_removed_after_a_day(source, decode):
    load(source, decode)
    entry = entry_of(source)
    young, old = (entry.with_name(f".{entry.name}.{name}") for name in ("young", "old"))
    entry.rename(entry.with_name("away"))
    for scratch in (young, old):
        (scratch / entry.name).mkdir(parents=True)
        (scratch / entry.name / "x.npy").write_bytes(b"half")
    os.utime(old, (0, 0))
    load(source, decode)
    assert decode.calls == 2 and young.exists() and not old.exists()


def test_a_writer_that_fails_half_way_leaves_nothing(tmp_path):
    def write(draft):
        draft.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.publish(tmp_path / "cache" / "file", write)
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_cannot_be_written_is_told_in_one_line_and_done_without(source, decode):
    (source.parent / "cache").write_bytes(b"a file where the folder should be")
    with pytest.warns(UserWarning, match=r"\A[^\n]*cache.*without it\Z"):
        load(source, decode)
    assert decode.calls == 1


def test_no_cache_folder_means_no_cache(source, decode):
    assert cache.cached("reader", [source], decode, None) is ARRAYS
    assert [file.name for file in source.parent.iterdir()] == ["source.bin"]


def test_concurrent_writers_of_one_entry_agree(source, decode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        errors = []

        def work():
            try:
                for _ in range(20):
                    entry = source.parent / "cache" / "entry"
                    cache.publish(entry, lambda draft: cache._save(ARRAYS, draft))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert [path.name for path in (source.parent / "cache").iterdir()] == ["entry"]
    assert cache._load(source.parent / "cache" / "entry") is not None


def test_a_source_that_cannot_be_read_is_the_users_mistake(tmp_path, decode):
    with pytest.raises(UsageError, match=r"gone\.bin: cannot be read"):
        cache.cached("reader", [tmp_path / "gone.bin"], decode, tmp_path / "cache")
