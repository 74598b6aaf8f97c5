"""The cache of decoded data sets: names of entries, atomic writes, detection of damage."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.files import assert_rows

from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays

ARRAYS = Arrays("set", np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1), np.array([0, 1, 0], np.int32), ("a", "b"), 2)


class Decoder:
    """Returns `ARRAYS` and counts its calls."""

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
    arrays = cache.cached(reader, [source], decode, source.parent / "cache")
    assert_rows(arrays, ARRAYS.x, ARRAYS.y)
    assert arrays.y.dtype == np.int32 and (arrays.name, arrays.class_names, arrays.num_train) == ("set", ("a", "b"), 2)
    return arrays


def entry_of(source):
    (entry,) = (source.parent / "cache").iterdir()
    return entry


def test_data_set_is_decoded_once_and_then_mapped_read_only(source, decode):
    for _ in range(3):
        arrays = load(source, decode)
        assert isinstance(arrays.x, np.memmap) and not arrays.x.flags.writeable
    assert decode.calls == 1


def test_entry_name_depends_on_path_content_and_reader_not_on_time(source, decode):
    load(source, decode)
    os.utime(source, (0, 0))
    load(source, decode)
    link = source.with_name("link.bin")
    link.symlink_to(source)
    load(link, decode)
    assert decode.calls == 1
    load(source, decode, reader="other")
    assert decode.calls == 2
    moved = source.rename(source.with_name("moved.bin"))
    load(moved, decode)
    assert decode.calls == 3
    moved.write_bytes(b"two")  # of the same size
    os.utime(moved, (0, 0))
    load(moved, decode)
    assert decode.calls == 4


def test_source_that_changes_during_decoding_is_not_cached(source):
    def decode():
        source.write_bytes(b"two")
        return ARRAYS

    cache.cached("reader", [source], decode, source.parent / "cache")
    assert not (source.parent / "cache").exists()


DAMAGE = {
    "truncated": ("x.npy", lambda content: content[:-1]),
    "flipped": ("y.npy", lambda content: content[:-1] + b"\x55"),
    "missing": ("x.npy", None),
    "empty": ("manifest.json", lambda content: b""),
    "nested": ("manifest.json", lambda content: b"[" * 100_000),
    "other structure": ("manifest.json", lambda content: b'{"files": {"x.npy": 1}}'),
    "class name": ("manifest.json", lambda content: content.replace(b'["a", "b"]', b'["a", "c"]')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entry_is_rebuilt(source, decode, damage):
    load(source, decode)
    name, change = DAMAGE[damage]
    file = entry_of(source) / name
    intact = file.read_bytes()
    file.unlink() if change is None else file.write_bytes(change(intact))
    load(source, decode)
    assert decode.calls == 2 and (entry_of(source) / name).read_bytes() == intact


def test_scratch_folder_of_a_killed_writer_is_ignored_and_removed_after_a_day(source, decode):
    load(source, decode)
    entry = entry_of(source)
    recent, old = (entry.with_name(f".{entry.name}.{name}") for name in ("recent", "old"))
    entry.rename(entry.with_name("renamed"))
    for scratch in (recent, old):
        (scratch / entry.name).mkdir(parents=True)
        (scratch / entry.name / "x.npy").write_bytes(b"half")
    os.utime(old, (0, 0))
    load(source, decode)
    assert decode.calls == 2 and recent.exists() and not old.exists()


def test_interrupted_writer_leaves_no_file(tmp_path):
    def write(draft):
        draft.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.publish(tmp_path / "cache" / "file", write)
    assert not list((tmp_path / "cache").iterdir())


def test_unwritable_cache_gives_one_warning_line_and_no_error(source, decode):
    (source.parent / "cache").write_bytes(b"a file where the folder should be")
    with pytest.warns(UserWarning, match=r"\A[^\n]*cache.*without it\Z"):
        load(source, decode)
    assert decode.calls == 1


def test_concurrent_writers_of_one_entry_agree(source):
    entry = source.parent / "cache" / "entry"
    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("error")
        list(pool.map(lambda _: cache.publish(entry, lambda draft: cache._save(ARRAYS, draft)), range(20)))
    assert [path.name for path in (source.parent / "cache").iterdir()] == ["entry"]
    assert cache._load(entry) is not None
