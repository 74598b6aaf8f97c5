"""Columns of arrays are scaled by the training rows of their run, and a stored model takes columns scaled so."""

import base64
import dataclasses
import json
import pickle

import numpy as np
import pytest
from sklearn import show_versions
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax import feature_file
from fedvg_jax.data import scaling
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.models import pretrained
from fedvg_jax.runs.record import folder

RNG = np.random.default_rng(0)
MEANS = np.array([1.7e9, -5.0, 0.0])
X = RNG.normal(MEANS, [0.5, 100.0, 1.0], (400, 3))
Y = (X[:, 0] > MEANS[0]).astype(int)
CONFIG = fv.Config(
    normalise="columns", clients=4, partition="iid", model="linear", rounds=10, lr=0.5, devices="1"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a folder and an export, in which rows are told apart by a column of a large mean."""
    out = tmp_path_factory.mktemp("columns")
    config = dataclasses.replace(CONFIG, out=out / "run", export=out / "model.safetensors")
    return fv.run(config, data=(X, Y))


def test_columns_of_any_mean_have_unit_deviation_unless_they_are_constant():
    x = np.c_[X[:200], np.full(200, 0.1)]
    scaled = scaling.fit(Arrays("x", x, np.zeros(200), (), 200), np.arange(200)).scaled(x)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(0), [1, 1, 1, 0], rtol=1e-6, atol=1e-6)


def test_means_and_deviations_are_in_the_run_folder_and_in_the_export(finished):
    sim = fv.simulation(CONFIG, data=(X, Y))
    train = X[np.concatenate(sim.partition.train)]
    deviation = (train - MEANS).std(0)  # of differences that are exact
    for stored in (
        folder.read_columns(finished.folder),
        pretrained.read_columns(finished.config.export),
    ):
        np.testing.assert_allclose(stored.transformer.mean_, train.mean(0), rtol=1e-12)
        np.testing.assert_allclose(stored.transformer.scale_, deviation, rtol=1e-12)
        np.testing.assert_array_equal(stored.scaled(X), sim.scaled_by.scaled(X))


def test_an_evaluation_scales_rows_as_the_run_did(finished):
    sim = fv.simulation(CONFIG, data=(X, Y))
    test = np.concatenate(sim.partition.test)
    of_rows = fv.evaluate(sim, finished.variables, (X[test], Y[test]))
    assert of_rows["accuracy"] == fv.evaluate(sim, finished.variables)["test_accuracy"] > 0.95


@pytest.mark.parametrize("stored", ["folder", "checkpoint", "export"])
def test_a_stored_model_takes_columns_as_it_was_trained_on(finished, stored):
    paths = {"folder": finished.folder, "export": finished.config.export}
    paths["checkpoint"] = next((finished.folder / "checkpoints").iterdir())
    config = dataclasses.replace(CONFIG, init=paths[stored], partition_seed=7)
    moved = fv.simulation(config, data=(X * [1, 2, 1], Y))
    expected = folder.read_columns(finished.folder)
    np.testing.assert_array_equal(moved.scaled_by.scaled(X), expected.scaled(X))
    with usage_error("init", "normalise"):
        fv.simulation(dataclasses.replace(config, normalise="none"), data=(X, Y))
    with usage_error("x [1, 2]", "3 columns"):
        fv.simulation(config, data=(X[:, :2], Y))


def test_features_of_scaled_columns_need_a_model_that_has_them(finished, tmp_path):
    arrays = fv.simulation(CONFIG, data=(X, Y)).arrays
    config = fv.Config(normalise="columns", model="mlp")
    with usage_error("normalise"):
        feature_file.write(tmp_path / "f.npz", config, arrays)
    config = dataclasses.replace(config, model="linear", init=finished.folder)
    feature_file.write(tmp_path / "f.npz", config, arrays, dtype=np.float32)
    with np.load(tmp_path / "f.npz") as file:
        expected = folder.read_columns(finished.folder).scaled(X)
        np.testing.assert_array_equal(file["x_train"], expected)


def _calls(function, *arguments):
    """Returns an object whose pickle calls a function."""
    return type("Call", (), {"__reduce__": lambda self: (function, arguments)})()


DAMAGED = {
    "no pickle": b"{}",
    "a function": pickle.dumps(_calls(print, "ran!")),
    "a function of NumPy": pickle.dumps(_calls(np.save, "x.npy", 1)),
    "a file of NumPy": pickle.dumps(_calls(np.memmap, "x.npy", "uint8", "w+", 0, (1,))),
    "a function of scikit-learn": pickle.dumps(_calls(show_versions)),
    "a member": b"\x80\x04\x8c\x0csklearn.base\x8c\x0fwarnings.sys.exit\x93.",
    "an array": pickle.dumps(np.ones(1), 4),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_columns_are_refused_and_nothing_of_them_is_called(
    tmp_path, monkeypatch, capsys, kind
):
    monkeypatch.chdir(tmp_path)
    text = base64.b64encode(DAMAGED[kind]).decode()
    written = json.dumps({"transformer": text, "label": None, "class_names": []})
    (tmp_path / "columns.json").write_text(written)
    with usage_error("columns.json"):
        folder.read_columns(tmp_path)
    path = tmp_path / "m.safetensors"
    pretrained.write(path, {"w": np.ones(1)}, {pretrained.COLUMNS: written})
    with usage_error("m.safetensors"):
        pretrained.read_columns(path)
    assert not capsys.readouterr().out and len(list(tmp_path.iterdir())) == 2
