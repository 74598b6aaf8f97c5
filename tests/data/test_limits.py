"""Data files with values at the limits of dtypes, of wrong types, or damaged: read or refused in one line."""

import os
import zipfile

import numpy as np
import pytest
from support.files import pixels, usage_error

from fedvg_jax import data
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import exchange

every_limit = pytest.mark.parametrize(
    ("dtype", "value"), [(np.int64, -(2**63)), (np.int64, 2**31), (np.int64, 2**63 - 1), (np.uint64, 2**64 - 1)]
)


# --- integers beyond int32


@every_limit
def test_label_at_the_limits_of_its_dtype_is_refused(tmp_path, dtype, value):
    y = np.array([0, value, 1], dtype)
    with usage_error("integers of y must be below 2**31", str(abs(value))):
        user_data.as_arrays((np.ones((3, 2)), y))
    with usage_error("integers of y must be below 2**31"):
        user_data.as_arrays(Arrays("mine", np.ones((3, 2)), y, ("a", "b"), 3))
    np.savez(tmp_path / "set.npz", x=pixels(3, 2, 2), y=y, class_names=np.array(["a", "b"]))
    with usage_error("set.npz", "0..1", str(value)):
        data.load("npz", tmp_path)


# --- invalid texts


@pytest.mark.parametrize(
    "names",
    [
        np.array([b"\xff", b"b"]),
        np.frombuffer(b"\xff\xff\x11\x00" * 2, "<U1"),
        np.frombuffer(b"\x7f\xff\xff\xff\0\0\0a" * 2, ">U2"),
    ],
    ids=["bytes", "no character", "no character, big-endian"],
)
def test_class_names_that_are_not_text_are_refused(tmp_path, names):
    np.savez(tmp_path / "set.npz", x=pixels(2, 3, 3), y=np.array([0, 1]), class_names=names)
    with usage_error("set.npz", "class_names must be texts in UTF-8"):
        data.load("npz", tmp_path)


# --- members of archives


@pytest.mark.parametrize(
    ("member", "content"), [("x.npy", b""), ("y", b"not an array"), ("groups.npy", b"\x93NUMPY\x09\x00")]
)
def test_member_that_is_not_an_array_is_refused(tmp_path, member, content):
    valid = {"x": pixels(2, 3, 3), "y": np.array([0, 1])}
    valid.pop(member.removesuffix(".npy"), None)
    np.savez(tmp_path / "set.npz", **valid)
    with zipfile.ZipFile(tmp_path / "set.npz", "a") as archive:
        archive.writestr(member, content)
    with usage_error("set.npz", "plain arrays"):
        data.load("npz", tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_special_file_is_refused_without_reading(tmp_path, make):
    """Reading a pipe would block, and reading /dev/zero would never end."""
    for name in ("rows.npz", "rows.json"):
        make(tmp_path / name)
        with usage_error(name, "regular file"):
            exchange.read(tmp_path / name)
    for cache_dir in (None, tmp_path / "cache"):
        with usage_error("rows.npz", "regular file"):
            data.load("npz", tmp_path, cache_dir)
