"""`python -m fedvg_jax.prepare features`: its rows, its file, the task that it becomes, and its errors."""

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
    arrays = data.load("npz", tmp_path / "f.npz")
    assert arrays.class_names == NAMES and arrays.num_train == 120
    np.testing.assert_array_equal(arrays.y, y)


def test_groups_are_kept_and_features_have_16_bits(images, tmp_path):
    arrays = data.load("npz", images[0])._replace(groups=np.arange(150) // 2)
    feature_file.write(tmp_path / "f.npz", Config(model="mlp"), arrays)
    again = data.load("npz", tmp_path / "f.npz")
    assert again.groups.tolist() == arrays.groups.tolist() and again.x.dtype == np.float16


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
