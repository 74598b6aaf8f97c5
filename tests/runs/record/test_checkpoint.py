"""Checkpoints are restored bit for bit, or an older one is, with the reason."""

import random
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.files import usage_error

from fedvg_jax.host import files
from fedvg_jax.runs.record import checkpoint, seals

STATE = {
    "round": np.int32(7),
    "model": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4) / 7, "half": np.ones(3, ml_dtypes.bfloat16)},
    "memory": (np.array([True, False]), np.zeros((0, 3), np.float32), np.float64(1) / 3, ()),
}


def template(about):
    return STATE


def restored(folder, expected=template):
    """Returns (state, seal) or None, and the logged lines."""
    logged = []
    return checkpoint.restore(folder, expected, logged.append), logged


def save(folder, number, **about):
    marked = {**STATE, "round": np.int32(number)}
    checkpoint.save(folder, number, marked, about, keep=2)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for f, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (f.shape, f.dtype, f.tobytes()) == (e.shape, e.dtype, e.tobytes())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder of two checkpoints, to copy."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    folder.mkdir()
    save(folder, 3, note="older")
    save(folder, 12, note="newer")
    return folder


@pytest.fixture
def run(pair, tmp_path):
    return shutil.copytree(pair, tmp_path / "run")


@pytest.mark.quick
def test_newest_checkpoint_is_restored_bit_for_bit_with_its_entries(run):
    (state, about), logged = restored(run)
    assert_same(state, {**STATE, "round": np.int32(12)})
    assert about["note"] == "newer" and about["round"] == 12 and not logged
    assert seals.newest_round(run) == 12
    assert restored(run.parent) == (None, []) and seals.newest_round(run.parent) == 0


def test_copy_on_the_host_owns_its_memory():
    x = jnp.zeros(3)
    copy = checkpoint.to_host(x)
    assert copy.flags.owndata and copy.flags.writeable


def test_saving_keeps_the_newest_sealed_checkpoints_only(run):
    (run / "checkpoints" / "000013").mkdir()
    save(run, 14)
    assert [path.name for path in seals.checkpoint_folders(run)] == ["000012", "000014"]


def test_saving_a_round_again_replaces_its_checkpoint(run):
    save(run, 12, note="again")
    assert restored(run)[0][1]["note"] == "again"


DAMAGE = {
    "flipped": lambda data, at: data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :],
    "zeroed": lambda data, at: data[:at] + bytes(len(data) - at),
    "longer": lambda data, at: data + b"\0",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_skipped_in_one_line_for_an_older_one(run, how):
    """Any file, at any offset; writing zeros over zeros is no damage."""
    rng, newest = random.Random(how), seals.checkpoint_folders(run)[-1]
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        good = path.read_bytes()
        bad = DAMAGE[how](good, rng.randrange(len(good))) if good else b"\0"
        if bad == good:
            continue
        path.write_bytes(bad)
        (state, about), logged = restored(run)
        assert about["round"] == 3 and state["round"] == 3, path
        assert len(logged) == 1 and "round 12" in logged[0] and "damaged" in logged[0] and "\n" not in logged[0], path
        path.write_bytes(good)
    assert restored(run)[0][1]["round"] == 12


def test_missing_file_is_damage_and_missing_seal_is_half_written(run):
    newest, older = reversed(seals.checkpoint_folders(run))
    next(path for path in (newest / "state").rglob("*") if path.is_file()).unlink()
    (older / "seal.json").unlink()
    with usage_error("has no usable checkpoint (checkpoint of round 12 skipped: ", "is damaged); nothing was changed"):
        restored(run)
    (newest / "seal.json").unlink()
    assert restored(run) == (None, [f"checkpoint of round {i} skipped: half-written" for i in (12, 3)])


def test_bytes_that_changed_before_sealing_are_detected_by_the_leaf(run):
    """As after an error of memory or Orbax: the files are as sealed, a leaf is not as saved."""
    path = seals.checkpoint_folders(run)[-1]
    seal = seals.read_seal(path)
    seal["leaves"]["model.kernel"][2] ^= 1
    files.replace(path / "seal.json", seals.seal_text(seal))
    (_, about), logged = restored(run)
    assert about["round"] == 3 and "model.kernel is damaged" in logged[0]


def test_checkpoint_of_other_shapes_is_skipped_by_name(run):
    other = {**STATE, "model": {**STATE["model"], "kernel": np.zeros((3, 5), np.float32)}}
    with usage_error("model.kernel is ((3, 4), 'float32'), not ((3, 5), 'float32')"):
        restored(run, lambda about: other)


def test_other_format_is_not_reported_as_damage(run):
    path = seals.checkpoint_folders(run)[-1]
    seal = seals.read_seal(path) | {"format": 99}
    files.replace(path / "seal.json", seals.seal_text(seal))
    assert "format 99" in restored(run)[1][0]


@pytest.mark.parametrize("text", ["", "[]", '{"crc": 0, "files": {}}'])
def test_malformed_seal_is_damage(run, text):
    (seals.checkpoint_folders(run)[-1] / "seal.json").write_text(text)
    assert restored(run)[1] == ["checkpoint of round 12 skipped: seal.json is damaged"]


@pytest.mark.parametrize("name", ["a**b", "gs:"])
def test_path_may_have_characters_with_a_meaning_in_orbax(tmp_path, name):
    run = tmp_path / name
    run.mkdir()
    save(run, 3, note="kept")
    assert restored(run)[0][1]["note"] == "kept"
