"""Every registered model, and the classification task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax.config import MODELS as NETWORKS
from fedvg_jax.models import resnet, vit
from fedvg_jax.models import task as tasks
from fedvg_jax.models.conv import rewrite
from fedvg_jax.models.mlp import MLP
from fedvg_jax.runs.assemble import registry

CIFAR = (32, 32, 3)


def make(name, shape=CIFAR, classes=10, conv="gemm"):
    return registry.named_task(fv.Config(model=name, conv=conv), shape, classes)


NARROW = {
    "resnet": (resnet.ResNet(3, (1, 1), width=4), (9, 12, 3)),
    "resnet, group norm, cifar stem": (resnet.ResNet(3, (1,), width=48, norm="group", stem="cifar"), (9, 12, 3)),
    "vit": (vit.ViT(3, patch=4, width=8, depth=1, heads=2, image_size=8), (6, 9, 3)),
}
"""Narrower networks than those with a name, and their images."""


def task_of(name, image, conv="gemm"):
    """The task of a network with three classes."""
    if name in NARROW:
        return rewrite.fast_task(tasks.classification(NARROW[name][0], 3, image), conv)
    return make(name, image, 3, conv)


@functools.cache
def with_small_images(name):
    """The task on small images, of a named model the smallest it takes, and a batch of six with two rows of padding."""
    image = NARROW[name][1] if name in NARROW else (NETWORKS[name].smallest, NETWORKS[name].smallest, 2)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (6, *image), np.uint8))
    return task_of(name, image), fv.Batch(x, jnp.array([0, 1, 2, 1, 0, 0], jnp.int32)), jnp.arange(6) < 4


@functools.cache
def model_variables(name):
    """Returns the model's arrays in double precision."""
    return worlds.random_variables(with_small_images(name)[0])


@functools.cache
def train_step(name, conv):
    """Returns (batch, mask) -> ((loss, statistics), gradients), in double precision and NumPy."""
    _, batch, _ = with_small_images(name)
    params, stats = model_variables(name)
    loss = task_of(name, batch.x.shape[1:], conv).loss
    run = worlds.jit(lambda batch, mask: jax.value_and_grad(loss, has_aux=True)(params, stats, batch, mask, True))

    def step(*arguments):
        with jax.numpy_dtype_promotion("standard"):  # as in a run: a ViT resizes its images in float32
            return jax.device_get(run(*arguments))

    return step


@pytest.fixture(params=["lenet5", "cnn", *NARROW])
def trained(request, x64):
    """Returns (batch, mask, train step, statistics before it) of one model."""
    _, batch, mask = with_small_images(request.param)
    conv = "lax" if request.param in NARROW else "planes"
    return batch, mask, train_step(request.param, conv), model_variables(request.param).stats


def test_dense_and_convolution_have_torch_s_initialisation():
    """U(-b, b) with b = 1 / sqrt(fan_in). The largest of n draws misses b by 25 b / n with probability e^-25, and the
    mean is 0 up to 6 standard deviations of b / sqrt(3 n)."""
    params = worlds.jit(make("tinycnn", (8, 8, 1)).init)(jax.random.key(3)).params
    for layer in params.values():
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        for values in (layer["kernel"], layer["bias"]):
            largest, n = np.abs(values).max(), values.size
            assert bound * (1 - 25 / n) <= largest <= bound * (1 + 1e-6)
            assert abs(values.mean()) <= 6 * bound / np.sqrt(3 * n)


def test_padded_rows_change_neither_loss_nor_gradients(trained):
    batch, mask, run, _ = trained
    other = fv.Batch(batch.x.at[4:].set(255), batch.y.at[4:].set(2))
    jax.tree.map(np.testing.assert_array_equal, run(other, mask), run(batch, mask))


def test_batch_without_real_rows_has_loss_zero_and_gradient_zero(trained):
    batch, mask, run, stats = trained
    (loss, new), grads = run(batch, np.zeros_like(mask))
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(grads))
    jax.tree.map(np.testing.assert_array_equal, new, stats)


def test_every_tensor_has_a_gradient(trained):
    batch, mask, run, _ = trained
    assert all(leaf.any() for leaf in jax.tree.leaves(run(batch, mask)[1]))


@pytest.mark.parametrize(("name", "conv"), [("lenet5", "planes"), ("tinycnn", "gemm")])
def test_model_has_the_same_loss_and_gradient_with_every_convolution(x64, name, conv):
    """gemm with one model: `test_conv.py` compares it with XLA's convolution in every case."""
    _, batch, mask = with_small_images(name)
    worlds.assert_close(train_step(name, conv)(batch, mask), train_step(name, "lax")(batch, mask), 1e-9)


def test_mlp_without_hidden_layers_is_logistic_regression(x64):
    """On pixels scaled to [0, 1]."""
    task, rng = tasks.classification(MLP(3, ()), 3, (2, 2, 1)), np.random.default_rng(0)
    x, kernel, bias = rng.integers(0, 256, (5, 2, 2, 1), np.uint8), rng.normal(size=(4, 3)), rng.normal(size=3)
    params = {"classifier": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}
    actual = task.predict(params, {}, fv.Batch(jnp.asarray(x), jnp.zeros(5, jnp.int32)))
    np.testing.assert_allclose(actual, x.reshape(5, 4) / 255 @ kernel + bias, rtol=1e-12)


# --- metrics


@pytest.mark.parametrize("present", [(0, 1, 2, 3), (0, 2)], ids=["all classes", "some classes never occur"])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true:UserWarning:sklearn")
def test_metrics_equal_those_of_scikit_learn(present):
    from sklearn import metrics as sklearn_metrics  # 2 s, which every worker would pay at collection

    rng = np.random.default_rng(0)
    true, predicted = rng.choice(present, 60), rng.integers(0, 4, 60)
    confusion = np.zeros((4, 4), int)
    np.add.at(confusion, (true, predicted), 1)
    actual = tasks.metrics({"loss": np.float32(90), "confusion": confusion.reshape(-1)})
    expected = {
        "loss": 1.5,
        "accuracy": sklearn_metrics.accuracy_score(true, predicted),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(true, predicted),
        "macro_f1": sklearn_metrics.f1_score(true, predicted, average="macro"),
        "majority_accuracy": np.bincount(true).max() / 60,
    }
    assert actual == pytest.approx(expected, rel=1e-12)


def test_labels_of_a_small_dtype_are_counted_as_those_of_int32():
    """The product of a label and the 200 classes exceeds the dtype."""
    count = 200
    task = tasks.classification(MLP(count), count, (2, 2, 1))
    variables = worlds.jit(task.init)(jax.random.key(0))
    labels, mask = jnp.array([0, 1, 2, 127, 7]), jnp.array([True, True, True, True, False])
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (5, 2, 2, 1), np.uint8))
    sums = worlds.jit(task.measure)(*variables, fv.Batch(x, labels.astype(jnp.int8)), mask)
    predicted = jnp.argmax(task.predict(*variables, fv.Batch(x, labels)), -1)
    expected = np.zeros((count, count), int)
    np.add.at(expected, (labels[:4], predicted[:4]), 1)
    np.testing.assert_array_equal(sums["confusion"].reshape(count, count), expected)


def test_metrics_of_many_classes_equal_those_of_their_confusion_matrix(monkeypatch):
    """The matrix has a cell for each pair; above a number of classes its sums and its diagonal are counted."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)).astype(np.float32), rng.integers(0, 7, 30).astype(np.int32)
    mask = jnp.arange(30) < 28
    task = tasks.classification(MLP(7, hidden=()), 7, (6,))
    variables = worlds.jit(task.init)(jax.random.key(0))
    arguments = *variables, fv.Batch(jnp.asarray(x), jnp.asarray(y)), mask
    by_matrix = tasks.metrics(jax.device_get(worlds.jit(task.measure)(*arguments)))
    monkeypatch.setattr(tasks, "MOST_COUNTED", 6)
    sums = worlds.jit(tasks.classification(MLP(7, hidden=()), 7, (6,)).measure)(*arguments)
    assert sums["correct"].shape == (7,) and "confusion" not in sums
    assert tasks.metrics(jax.device_get(sums)) == pytest.approx(by_matrix)
