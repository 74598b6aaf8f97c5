"""Checkpoints: what was saved comes back bit for bit, or another one does, and it is said why."""

import json
import random
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fedvg_jax.core import files
from fedvg_jax.runs import checkpoint, seals

STATE = {
    "round": np.int32(7),
    "model": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4) / 7, "half": np.ones(3, ml_dtypes.bfloat16)},
    "memory": (np.array([True, False]), np.zeros((0, 3), np.float32), np.float64(1) / 3, ()),
}


def template(about):
    return STATE


def restored(folder, expected=template, refuse=lambda about: ""):
    """(state, about) or None; and the lines logged."""
    logged = []
    return checkpoint.restore(folder, expected, refuse, logged.append), logged


def save(folder, number, **about):
    marked = {**STATE, "round": np.int32(number)}
    checkpoint.save(folder, number, marked, about, keep=2)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (f.shape, f.dtype, f.tobytes()) == (e.shape, e.dtype, e.tobytes())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder of two checkpoints, to be copied."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    folder.mkdir()
    save(folder, 3, note="older")
    save(folder, 12, note="newer")
    return folder


@pytest.fixture
def run(pair, tmp_path):
    return shutil.copytree(pair, tmp_path / "run")


def test_the_newest_comes_back_in_every_bit_and_says_what_it_was_logged(run):
    (state, about), logged = restored(run)
    assert_same(state, {**STATE, "round": np.int32(12)})
    assert about["note"] == "newer" and about["round"] == 12 and not logged
    assert seals.newest_round(run) == 12


def test_on_the_device_it_is_as_it_was_typed_keys_too():
    state = {"key": jax.random.key(3), "x": jnp.arange(3.0)}
    back = checkpoint.place_like(state, checkpoint.to_host(state))
    assert (jax.random.key_data(back["key"]) == jax.random.key_data(state["key"])).all()
    assert jax.random.key_impl(back["key"]) == jax.random.key_impl(state["key"]) and (back["x"] == state["x"]).all()


def test_a_copy_on_the_host_is_nobody_else_s():
    x = jnp.zeros(3)
    copy = checkpoint.to_host(x)
    assert copy.flags.owndata and copy.flags.writeable


def test_no_more_are_kept_than_asked_for_and_nothing_half_written(run):
    (run / "checkpoints" / "000013").mkdir()
    save(run, 14)
    assert [path.name for path in checkpoint.checkpoint_folders(run)] == ["000012", "000014"]


def test_a_round_saved_again_replaces_what_was_there(run):
    save(run, 12, note="again")
    assert restored(run)[0][1]["note"] == "again"


def test_without_any_there_is_none(tmp_path):
    assert restored(tmp_path) == (None, [])
    assert seals.newest_round(tmp_path) == 0


DAMAGE = {
    "flipped": lambda data, at: data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :],
    "cut": lambda data, at: data[:at],
    "zeroed": lambda data, at: data[:at] + bytes(len(data) - at),
    "longer": lambda data, at: data + b"\0",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_one_is_passed_over_in_one_line_for_the_one_before(run, how):
    """Any file, at any offset; zeros where zeros were are no damage."""
    rng, newest = random.Random(how), checkpoint.checkpoint_folders(run)[-1]
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


def test_a_missing_file_is_damage_and_a_missing_seal_is_half_written(run):
    newest, older = reversed(checkpoint.checkpoint_folders(run))
    next(path for path in (newest / "state").rglob("*") if path.is_file()).unlink()
    (older / "seal.json").unlink()
    found, logged = restored(run)
    assert found is None and "damaged" in logged[0] and "round 3 skipped: half-written" in logged[1]


def test_bytes_that_changed_before_they_were_sealed_are_found_by_the_leaf(run):
    """As when memory or Orbax errs: the files are what was sealed, the leaf is not what was meant."""
    path = checkpoint.checkpoint_folders(run)[-1]
    seal = seals.read_seal(path)
    seal["leaves"]["model.kernel"][2] ^= 1
    files.replace(path / "seal.json", seals.seal_text(seal))
    (_, about), logged = restored(run)
    assert about["round"] == 3 and "model.kernel is damaged" in logged[0]


def test_other_shapes_are_passed_over_and_named(run):
    other = {**STATE, "model": {**STATE["model"], "kernel": np.zeros((3, 5), np.float32)}}
    found, logged = restored(run, lambda about: other)
    assert found is None and "model.kernel is ((3, 4), 'float32'), not ((3, 5), 'float32')" in logged[0]


def test_one_that_is_refused_is_passed_over_with_the_reason(run):
    (_, about), logged = restored(run, refuse=lambda about: "not wanted" if about["note"] == "newer" else "")
    assert about["note"] == "older" and logged == ["checkpoint of round 12 skipped: not wanted"]


def test_another_format_is_logged_from_damage(run):
    path = checkpoint.checkpoint_folders(run)[-1]
    seal = seals.read_seal(path) | {"format": 99}
    files.replace(path / "seal.json", seals.seal_text(seal))
    assert "format 99" in restored(run)[1][0]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"crc": 0}', '{"crc": 0, "files": {}}', "{", "\x00"])
def test_a_seal_of_another_shape_is_damage(run, text):
    (checkpoint.checkpoint_folders(run)[-1] / "seal.json").write_text(text)
    assert restored(run)[1] == ["checkpoint of round 12 skipped: seal.json is damaged"]


def test_the_seal_is_plain_json(run):
    seal = json.loads((checkpoint.checkpoint_folders(run)[-1] / "seal.json").read_text())
    assert seal["leaves"]["model.half"][:2] == [[3], "bfloat16"] and seal["note"] == "newer"


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "gone", 1)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("name", ["a**b", "a[b]c", "a\\b", "gs:"])
def test_a_path_may_have_characters_that_mean_something_to_orbax(tmp_path, name):
    run = tmp_path / name
    run.mkdir()
    save(run, 3, note="kept")
    assert restored(run)[0][1]["note"] == "kept"
