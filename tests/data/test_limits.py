"""Data files with values at the limits of dtypes, of wrong types, or damaged: read or refused in one line."""

import io
import json
import os
import warnings
import zipfile

import numpy as np
import pytest
from files import pixels, png, usage_error, write, write_folder, write_tiny

from fedvg_jax import data
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import draw, from_rows
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record import history

LIMITS = [-(2**63), -(2**63) + 1, -(2**32), -(2**31), 2**31, 2**32, 2**63 - 1]
UNSIGNED = [2**32, 2**63, 2**64 - 1]
ALL = [*((np.int64, value) for value in LIMITS), *((np.uint64, value) for value in UNSIGNED)]
every_limit = pytest.mark.parametrize(("dtype", "value"), ALL)


# --- integers beyond int32


@every_limit
def test_label_at_the_limits_of_its_dtype_is_refused(tmp_path, dtype, value):
    y = np.array([0, value, 1], dtype)
    with usage_error("integers of y must be below 2**31", str(abs(value))):
        user_data.as_arrays((np.ones((3, 2)), y))
    with usage_error("integers of y must be below 2**31"):
        user_data.as_arrays(Arrays("mine", np.ones((3, 2)), y, ("a", "b"), 3))
    with usage_error("labels 0..2147483647", str(value)):
        draw.draw_partition(y, num_clients=1, alpha=1.0, min_samples=1)
    np.savez(tmp_path / "set.npz", x=pixels(3, 2, 2), y=y, class_names=np.array(["a", "b"]))
    with usage_error("set.npz", "0..1", str(value)):
        data.load("npz", tmp_path)


@every_limit
def test_row_at_the_limits_of_its_dtype_is_refused(tmp_path, dtype, value):
    row = np.array([1, value], dtype)
    message = ("rows must be 0..9", str(value))
    with usage_error("given", *message):
        from_rows.check([row], num_samples=10, num_clients=1, source="given")
    with usage_error("given", *message):
        from_rows.check(([row], [[2]], [[3]]), num_samples=10, num_clients=1, source="given")
    np.savez(tmp_path / "rows.npz", **{part: row if part == "test" else row[:1] for part in ("train", "val", "test")},
             train_sizes=[1], val_sizes=[1], test_sizes=[2])  # fmt: skip
    with usage_error("file", *message):
        from_rows.check(from_rows.read(tmp_path / "rows.npz"), num_samples=10, num_clients=1, source="file")
    (tmp_path / "rows.json").write_text(json.dumps([[value]]))
    with usage_error("file", "rows must be 0..9", str(value)):
        from_rows.check(from_rows.read(tmp_path / "rows.json"), num_samples=10, num_clients=1, source="file")


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_client_of_each_row_is_read_in_any_integer_dtype(tmp_path, dtype):
    owner = np.array([2, 0, 0, 1, 2, 1], dtype)
    np.savez(tmp_path / "rows.npz", client=owner)
    assert [client_rows.tolist() for client_rows in from_rows.read(tmp_path / "rows.npz")] == [[1, 2], [3, 5], [0, 4]]
    if np.issubdtype(dtype, np.signedinteger):
        np.savez(tmp_path / "rows.npz", client=np.array([1, -1, 0, 1], dtype))
        assert [client_rows.tolist() for client_rows in from_rows.read(tmp_path / "rows.npz")] == [[2], [0, 3]]


@pytest.mark.parametrize(
    "client",
    [
        np.array([0, 2**64 - 1], np.uint64),
        np.array([0, -(2**63)], np.int64),
        np.array([0, -2]),
        np.array([0, 2]),
        np.array([0, 10**12]),
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
        np.array(0),
        np.array([], int),
        np.array([b"0", b"1"]),
    ],
)
def test_client_array_without_valid_ids_is_refused(tmp_path, client):
    np.savez(tmp_path / "rows.npz", client=client)
    with usage_error("rows.npz", "client is", "ids [T]"):
        from_rows.read(tmp_path / "rows.npz")


@pytest.mark.parametrize("length", [3, 5])
def test_client_array_of_another_length_is_refused(tmp_path, length):
    np.savez(tmp_path / "rows.npz", client=np.arange(length) % 2)
    assert len(from_rows.read(tmp_path / "rows.npz", length)) == 2
    with usage_error("rows.npz", f"client is int64 [{length}], and the data set has 4 rows"):
        from_rows.read(tmp_path / "rows.npz", 4)


def test_client_array_is_read_in_linear_time(tmp_path):
    """Comparing each row with each client would need 4e10 comparisons."""
    np.savez(tmp_path / "rows.npz", client=np.arange(200_000)[::-1])
    result = from_rows.read(tmp_path / "rows.npz")
    assert len(result) == 200_000 and result[0].tolist() == [199_999]


@pytest.mark.parametrize(
    "sizes",
    [[-1, 3], [2**63, 2**63, 2], [2**62, 2**62, -(2**63), 2], [0.5, 1.5], [[2]], [], [1], [3]],
)
def test_sizes_that_do_not_add_up_are_refused(tmp_path, sizes):
    np.savez(tmp_path / "rows.npz", train=[0, 1], train_sizes=sizes, val=[2], val_sizes=[1], test=[3], test_sizes=[1])
    with usage_error("rows.npz", "not a partition"):
        from_rows.read(tmp_path / "rows.npz")


def test_more_shards_than_rows_are_refused():
    labels = np.zeros(100, int)
    parts = draw.draw_partition(labels, kind="shards", num_clients=4, alpha=1.0, shards_per_client=25, min_samples=25)
    assert all(len(np.concatenate(client_rows)) == 25 for client_rows in zip(*parts, strict=True))
    with usage_error("shards_per_client must be at most 25 for 4 clients to share 100 rows, got 26"):
        draw.draw_partition(labels, kind="shards", num_clients=4, alpha=1.0, shards_per_client=26)
    with usage_error("shards_per_client must be at most 22", "90 rows"):
        draw.draw_partition(
            labels, kind="shards", num_clients=4, alpha=1.0, shards_per_client=25, held_out="global", test_ratio=0.0
        )


@pytest.mark.parametrize("offsets", [[5, -(2**63), -1, 20], [0, 2**63 - 1, 9, 20]])
def test_offsets_whose_differences_overflow_are_refused(tmp_path, offsets):
    np.savez(
        tmp_path / "a.npz", train_jpeg=np.zeros(20, np.uint8), train_offsets=offsets, train_labels=np.zeros(3, int)
    )
    with usage_error("a.npz", "train_offsets must increase"):
        data.load("encoded", tmp_path)


@pytest.mark.parametrize("label", [1e300, -1e300, np.inf, 2.0**31, 0.5])
def test_float_label_that_is_not_whole_or_out_of_range_is_refused(tmp_path, label):
    np.save(tmp_path / "xdata.npy", pixels(2, 3, 3, 3))
    np.save(tmp_path / "ydata.npy", np.array([0, label]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with usage_error("ydata.npy", "whole numbers"):
            data.load("covid19", tmp_path)


# --- invalid texts


def write_npz(file, **members):
    """Writes a zip archive with these members, which need not be valid arrays."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "names",
    [
        np.array([b"\xff", b"b"]),
        np.frombuffer(b"\xff\xff\x11\x00" * 2, "<U1"),
        np.array([b"a", b"\xc3"]),
        np.frombuffer(b"\x7f\xff\xff\xff\0\0\0a" * 2, ">U2"),
    ],
    ids=["bytes", "no character", "truncated", "no character, big-endian"],
)
def test_class_names_that_are_not_text_are_refused(tmp_path, names):
    np.savez(tmp_path / "set.npz", x=pixels(2, 3, 3), y=np.array([0, 1]), class_names=names)
    with usage_error("set.npz", "class_names must be texts in UTF-8"):
        data.load("npz", tmp_path)
    members = {"train_png": np.frombuffer(png(pixels(3, 3, 3)), np.uint8), "train_labels": np.array([0])}
    np.savez(tmp_path / "set.npz", train_offsets=[0, len(members["train_png"])], **members, class_names=names)
    with usage_error("set.npz", "class_names must be texts in UTF-8"):
        data.load("encoded", tmp_path)


def test_class_names_from_folders_with_any_bytes_are_printable(tmp_path):
    root = tmp_path / os.fsdecode(b"s\xff")
    write_folder(root, {os.fsdecode(b"a\xfe"): 1, "b\nc": 1, "d\u00e9": 1})
    got = data.load("folder", root, tmp_path / "cache")
    assert (got.name, got.class_names) == ("s\\udcff", ("a\\udcfe", "b\\nc", "d\u00e9"))
    assert data.load("folder", root, tmp_path / "cache").class_names == got.class_names


# --- members of archives


@pytest.mark.parametrize("member", ["x.npy", "y", "class_names.npy", "groups.npy"])
@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY", b"\x93NUMPY\x09\x00"])
def test_member_that_is_not_an_array_is_refused(tmp_path, member, content):
    valid = {"x.npy": npy(pixels(2, 3, 3)), "y.npy": npy(np.array([0, 1]))}
    valid.pop(f"{member.removesuffix('.npy')}.npy", None)
    write_npz(tmp_path / "set.npz", **valid, **{member: content})
    with usage_error("set.npz", "plain arrays"):
        data.load("npz", tmp_path)


@pytest.mark.parametrize("member", ["client", "client.npy", "train.npy", "train_sizes.npy"])
def test_partition_member_that_is_not_an_array_is_refused(tmp_path, member):
    write_npz(tmp_path / "rows.npz", **{member: b"no array"})
    with usage_error("rows.npz", "it must hold"):
        from_rows.read(tmp_path / "rows.npz")


def test_partition_that_unpacks_beyond_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", client=np.zeros(2_000_000, int))
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a machine with 1 MB of memory
    with usage_error("bomb.npz", "GiB"):
        from_rows.read(tmp_path / "bomb.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"train":' * 100_000, "nested too deeply"),
        (b"\xff", "not complete JSON"),
        (b"3", "not a partition"),
        (b"null", "not a partition"),
        (b'"client"', "not a partition"),
        (b"[[[0]]]", "must be integers"),
        (b'{"client": {"a": 1}}', "not a partition"),
        (b'{"client": [0, 99999999999999999999]}', "not a partition"),
        (b'{"train": [[0]], "val": 3, "test": [[1]]}', "not a partition"),
        (b'{"train": [0], "train_sizes": {"a": 1}, "val": [[0]], "test": [[1]]}', "not a partition"),
    ],
)
def test_json_that_is_not_a_partition_is_refused_in_one_line(tmp_path, content, message):
    file = write(tmp_path / "rows.json", content)
    with usage_error("rows.json", message):
        from_rows.check(from_rows.read(file), num_samples=10, num_clients=1, source=file)


def test_warnings_of_libraries_that_read_files_are_hidden(tmp_path):
    """NumPy warns about a header from Python 2, Pillow about a palette with transparency."""
    old = npy(pixels(2, 3, 3)).replace(b"(2, 3, 3), ", b"(2L,3L,3L),")
    assert b"2L" in old
    write_npz(tmp_path / "set.npz", **{"x.npy": old, "y.npy": npy(np.array([0, 1]))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(data.load("npz", tmp_path).y) == 2
        np.savez(tmp_path / "rows.npz", client=np.array([0]))
        from_rows.read(tmp_path / "rows.npz")


def test_file_larger_than_memory_is_refused_before_reading(tmp_path, monkeypatch):
    write(tmp_path / "train_X.bin", bytes(2_000_000))
    for name in ("train_y.bin", "test_X.bin", "test_y.bin"):
        write(tmp_path / name, b"\1")
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a machine with 1 MB of memory
    with usage_error("train_X.bin", "GiB"):
        data.load("stl10", tmp_path)


# --- the JSON files of a run folder

DEEP = b'{"a":' * 100_000
NESTED = b'{"a":' * 900 + b"1" + b"}" * 900


@pytest.mark.parametrize(
    "content", [DEEP, b"[" * 100_000, b"[1]", b"3", b"null", b'"a"', b"\xff", b"", b'{"lr": {}}', NESTED, None]
)
def test_run_settings_that_are_not_a_json_object_are_refused_in_one_line(tmp_path, content):
    if content is not None:
        write(tmp_path / "config.json", content)
    with usage_error("config.json"):
        run_folder.read_config(tmp_path)


def test_history_nested_too_deeply_is_refused_in_one_line(tmp_path):
    write(tmp_path / "history.jsonl", DEEP + b"\n")
    with usage_error("history.jsonl", "damaged"):
        history.read(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("name", ["rows.npz", "rows.json", "val_annotations.txt", "set.npz"])
def test_special_file_is_refused_without_reading(tmp_path, make, name):
    """Reading a pipe would block, and reading /dev/zero would never end."""
    if name == "val_annotations.txt":
        write_tiny(tmp_path)
        (tmp_path / "val" / name).unlink()
        make(tmp_path / "val" / name)
        with usage_error(name, "regular file"):
            data.load("tinyimagenet", tmp_path)
    elif name == "set.npz":
        make(tmp_path / name)
        for cache_dir in (None, tmp_path / "cache"):
            with usage_error(name, "regular file"):
                data.load("npz", tmp_path, cache_dir)
    else:
        make(tmp_path / name)
        with usage_error(name, "regular file"):
            from_rows.read(tmp_path / name)
