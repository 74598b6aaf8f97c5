"""Checkpoints are restored bit for bit, or an older one is, with the reason."""

import json
import random
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from support.files import usage_error

from fedvg_jax.runs.record import checkpoint, stored

STATE = {
    "round": np.int32(7),
    "model": {
        "kernel": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        "half": np.ones(3, ml_dtypes.bfloat16),
    },
    "state": (np.array([True, False]), np.zeros((0, 3), np.float32), np.float64(1) / 3, ()),
}


def restored(folder, expected=STATE):
    """Returns (state, digest of the history) or None, and the logged lines."""
    logged = []
    return checkpoint.restore(folder, lambda leaves: expected, logged.append), logged


def save(folder, number):
    checkpoint.save(folder, number, {**STATE, "round": np.int32(number)}, [number, 0], keep=2)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for f, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (f.shape, f.dtype, f.tobytes()) == (e.shape, e.dtype, e.tobytes())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder of two checkpoints, to copy."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    folder.mkdir()
    save(folder, 3)
    save(folder, 12)
    return folder


@pytest.fixture
def run(pair, tmp_path):
    return shutil.copytree(pair, tmp_path / "run")


@pytest.mark.quick
def test_newest_checkpoint_is_restored_bit_for_bit_with_its_digests(run):
    (state, digest), logged = restored(run)
    assert_same(state, {**STATE, "round": np.int32(12)})
    assert digest == [12, 0] and not logged
    assert stored.newest_round(run) == 12
    assert restored(run.parent) == (None, []) and stored.newest_round(run.parent) == 0


def test_saving_keeps_the_newest_checkpoints_only(run):
    (run / "checkpoints" / "000013.orbax-checkpoint-tmp").mkdir()
    save(run, 14)
    save(run, 14)  # again, in its place
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"000012", "000014"}


DAMAGE = {
    "flipped": lambda data, at: data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :],
    "zeroed": lambda data, at: data[:at] + bytes(len(data) - at),
    "cut": lambda data, at: data[:at],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_skipped_for_an_older_one_or_restored_bit_for_bit(run, how):
    """Any file, at any offset. Orbax reads not every byte that it writes."""
    rng, newest, num_skipped = random.Random(how), stored.checkpoints(run)[-1], 0
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        good = path.read_bytes()
        path.write_bytes(DAMAGE[how](good, rng.randrange(len(good))) if good else b"")
        (state, _), logged = restored(run)
        if logged:
            assert "round 12 skipped" in logged[0] and "\n" not in logged[0], path
        number, num_skipped = 3 if logged else 12, num_skipped + len(logged)
        assert_same(state, {**STATE, "round": np.int32(number)})
        path.write_bytes(good)
    assert restored(run)[1] == [] and num_skipped > 1


def test_an_array_that_differs_from_its_digest_is_damage(run):
    """As after an error of memory: Orbax does not check the bytes of arrays itself."""
    path = stored.checkpoints(run)[-1] / "about" / "metadata"
    about = json.loads(path.read_text())
    about["leaves"]["model.kernel"][2] ^= 1
    path.write_text(json.dumps(about))
    (state, _), logged = restored(run)
    assert state["round"] == 3 and "model.kernel is damaged" in logged[0]


def test_without_an_intact_checkpoint_there_is_none_to_continue_from(run):
    for path in stored.checkpoints(run):
        shutil.rmtree(path / "state")
    with usage_error(
        "has no usable checkpoint (checkpoint of round 12 skipped: ", "nothing was changed"
    ):
        restored(run)


def test_checkpoint_of_other_shapes_is_skipped_by_name(run):
    other = {**STATE, "model": {**STATE["model"], "kernel": np.zeros((3, 5), np.float32)}}
    with usage_error("model.kernel is ((3, 4), 'float32'), not ((3, 5), 'float32')"):
        restored(run, other)
