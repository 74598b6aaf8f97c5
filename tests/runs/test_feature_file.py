"""`python -m fedvg_jax.prepare features`: its rows, its file, the task that it becomes, and its errors."""

import json

import jax
import numpy as np
import pytest
from support import worlds

from fedvg_jax import data, feature_file, prepare, resolve
from fedvg_jax.config import Config
from fedvg_jax.core.types import Batch
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.models import pretrained

RNG = np.random.default_rng(0)
NAMES = ("ant", "bee", "cat")


@pytest.fixture
def images(tmp_path):
    """(file, x, y) of 120 images to train and 30 to test."""
    path, x, y = (
        tmp_path / "images.npz",
        RNG.integers(0, 256, (150, 8, 8, 1), np.uint8),
        np.arange(150) % len(NAMES),
    )
    parts = {"x_train": x[:120], "y_train": y[:120], "x_test": x[120:], "y_test": y[120:]}
    np.savez(path, class_names=np.array(NAMES), **parts)
    return path, x, y


def call(source, out, *flags):
    flags = ["--dataset", "npz", "--data-dir", str(source), "--out", str(out), *flags]
    return prepare.main(["features", "--model", "tinycnn", *flags])


def test_file_holds_the_inputs_of_the_last_layer_of_the_weights_in_the_file(images, tmp_path):
    source, x, y = images
    config = Config(model="tinycnn")
    task = resolve.model.named_task(config, (8, 8, 1), 3)
    variables = worlds.random_variables(task)
    pretrained.save(tmp_path / "weights.safetensors", variables, "tinycnn")
    assert (
        call(
            source, tmp_path / "f.npz", "--init", str(tmp_path / "weights.safetensors"), "--float32"
        )
        == 0
    )
    forward = jax.jit(
        lambda x: task.forward(
            *variables, Batch(x, y.astype(np.int32)), np.ones(len(x), bool), False
        )[0]
    )
    expected = np.asarray(forward(x).features).reshape(len(x), -1)
    with np.load(tmp_path / "f.npz") as file:
        assert file["x_train"].shape[0] == 120 and file["x_test"].shape[0] == 30
        np.testing.assert_allclose(
            np.concatenate([file["x_train"], file["x_test"]]), expected, rtol=1e-5, atol=1e-6
        )
        manifest = json.loads(str(file["manifest"]))
    assert (manifest["model"], manifest["init"]) == ("tinycnn", f"{tmp_path}/weights.safetensors")
    arrays = data.load("npz", tmp_path / "f.npz")
    assert arrays.class_names == NAMES and arrays.num_train == 120
    np.testing.assert_array_equal(arrays.y, y)


def test_digests_name_the_weights_and_the_rows(images, tmp_path):
    source, *_ = images
    arrays = data.load("npz", source)._replace(groups=np.arange(150) // 2)
    given = [(0, arrays), (0, arrays), (1, arrays), (0, arrays._replace(x=255 - arrays.x))]
    for i, (seed, rows) in enumerate(given):
        feature_file.write(tmp_path / f"{i}.npz", Config(model="mlp", seed=seed), rows)
    manifests = [
        json.loads(str(np.load(tmp_path / f"{i}.npz")["manifest"])) for i in range(len(given))
    ]
    again = data.load("npz", tmp_path / "0.npz")
    assert again.groups.tolist() == arrays.groups.tolist() and again.x.dtype == np.float16
    first, same, other_weights, other_rows = ((m["weights"], m["source"]) for m in manifests)
    assert first == same
    assert first[0] != other_weights[0] and first[1] == other_weights[1]
    assert first[0] == other_rows[0] and first[1] != other_rows[1]


def test_resized_images_have_the_features_of_images_enlarged_before(tmp_path):
    x = RNG.integers(0, 256, (70, 4, 4, 3), np.uint8)
    y = np.arange(70, dtype=np.int32) % 3
    enlarged = (
        np.asarray(jax.image.resize(x.astype(np.float32), (70, 12, 8, 3), "bilinear"))
        .round()
        .astype(np.uint8)
    )
    small, large = (Arrays("made", images, y, NAMES, 70) for images in (x, enlarged))
    config = Config(model="tinycnn")
    feature_file.write(tmp_path / "small.npz", config, small, (12, 8), np.float32)
    feature_file.write(tmp_path / "large.npz", config, large, None, np.float32)
    values = [np.load(tmp_path / name)["x_train"] for name in ("small.npz", "large.npz")]
    np.testing.assert_array_equal(*values)
