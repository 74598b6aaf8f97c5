"""Every registered model, and the classification task."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.config import MODELS, Config
from fedvg_jax.models import pretrained, resnet, task as tasks, vit
from fedvg_jax.models.conv import rewrite
from fedvg_jax.models.plain import MLP

CIFAR = (32, 32, 3)


NARROW = {
    "resnet": (resnet.ResNet(3, (1, 1), width=4), (9, 12, 3)),
    "resnet, group norm, cifar stem": (
        resnet.ResNet(3, (1,), width=48, norm="group", stem="cifar"),
        (9, 12, 3),
    ),
    "vit": (vit.ViT(3, patch=4, width=8, depth=1, heads=2, image_size=8), (6, 9, 3)),
}
"""Narrower networks than those with a name, and their images."""


@functools.cache
def train_step(name, conv):
    """Returns (batch, mask, step, statistics before it) of a network with three classes, in double precision.

    A named model has the smallest images that it takes, and the batch two rows of padding behind four.
    `step` is (batch, mask) -> ((loss, statistics), gradients).
    """
    if name in NARROW:
        module, image = NARROW[name]
        task = rewrite.fast_task(tasks.classification(module, 3, image), conv)
    else:
        image = (MODELS[name].smallest, MODELS[name].smallest, 2)
        task = resolve.model.named_task(Config(model=name, conv=conv), image, 3)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (6, *image), np.uint8))
    params, stats = worlds.random_variables(task)
    loss = jax.value_and_grad(task.loss, has_aux=True)
    run = worlds.jit(lambda batch, mask: loss(params, stats, batch, mask, True))

    def step(*arguments):
        # as in a run: a ViT resizes its images in float32
        with jax.numpy_dtype_promotion("standard"):
            return jax.device_get(run(*arguments))

    batch = fv.Batch(x, jnp.array([0, 1, 2, 1, 0, 0], jnp.int32))
    return batch, jnp.arange(6) < 4, step, stats


def test_dense_and_convolution_have_torch_s_initialisation():
    """U(-b, b) with b = 1 / sqrt(fan_in). The largest of n draws misses b by 25 b / n with probability e^-25, and the
    mean is 0 up to 6 standard deviations of b / sqrt(3 n)."""
    task = resolve.model.named_task(Config(model="tinycnn"), (8, 8, 1), 10)
    params = worlds.jit(task.init)(jax.random.key(3)).params
    for layer in params.values():
        bound = np.prod(layer["kernel"].shape[:-1]) ** -0.5
        for values in (layer["kernel"], layer["bias"]):
            largest = np.abs(values).max()
            n = values.size
            assert bound * (1 - 25 / n) <= largest <= bound * (1 + 1e-6)
            assert abs(values.mean()) <= 6 * bound / np.sqrt(3 * n)


@pytest.mark.parametrize(("name", "conv"), [("lenet5", "planes"), *((n, "lax") for n in NARROW)])
def test_padded_rows_change_nothing_and_every_tensor_has_a_gradient(x64, name, conv):
    """A batch without real rows has loss 0 and gradient 0, and leaves the statistics."""
    batch, mask, run, stats = train_step(name, conv)
    other = fv.Batch(batch.x.at[4:].set(255), batch.y.at[4:].set(2))
    result = run(batch, mask)
    chex.assert_trees_all_equal(run(other, mask), result)
    assert all(leaf.any() for leaf in jax.tree.leaves(result[1]))
    (loss, new), grads = run(batch, np.zeros_like(mask))
    assert loss == 0 and not any(leaf.any() for leaf in jax.tree.leaves(grads))
    chex.assert_trees_all_equal(new, stats)


@pytest.mark.parametrize(("name", "conv"), [("lenet5", "planes"), ("tinycnn", "gemm")])
def test_model_has_the_same_loss_and_gradient_with_every_convolution(x64, name, conv):
    """gemm with one model: `test_conv.py` compares it with XLA's convolution in every case."""
    batch, mask, run, _ = train_step(name, conv)
    _, _, by_lax, _ = train_step(name, "lax")
    worlds.assert_close(run(batch, mask), by_lax(batch, mask), 1e-9)


# --- metrics


@pytest.mark.parametrize(
    "present", [(0, 1, 2, 3), (0, 2)], ids=["all classes", "some classes never occur"]
)
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true:UserWarning:sklearn")
def test_metrics_equal_those_of_scikit_learn(present):
    # 2 s, which every worker would pay at collection
    from sklearn import metrics as sklearn_metrics

    rng = np.random.default_rng(0)
    true = rng.choice(present, 60)
    predicted = rng.integers(0, 4, 60)
    confusion = np.zeros((4, 4), int)
    np.add.at(confusion, (true, predicted), 1)
    actual = tasks.classification_metrics(
        {"loss": np.float32(90), "confusion": confusion.reshape(-1)}
    )
    expected = {
        "loss": 1.5,
        "accuracy": sklearn_metrics.accuracy_score(true, predicted),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(true, predicted),
        "macro_f1": sklearn_metrics.f1_score(true, predicted, average="macro"),
        "majority_accuracy": np.bincount(true).max() / 60,
    }
    assert actual == pytest.approx(expected, rel=1e-12)


def test_labels_of_a_small_dtype_are_counted_as_those_of_int32():
    """The product of a label and the 200 classes exceeds the dtype; the last row is padding."""
    task = tasks.classification(MLP(200, ()), 200, (2, 2, 1))
    variables = worlds.random_variables(task)
    labels = jnp.array([0, 1, 127, 7])
    mask = jnp.arange(4) < 3
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 2, 2, 1), np.uint8))
    measure = worlds.jit(task.measure)
    few, many = (
        measure(*variables, fv.Batch(x, labels.astype(dtype)), mask) for dtype in ("int8", "int32")
    )
    np.testing.assert_array_equal(few["confusion"], many["confusion"])


# --- the options of a model, from its flags to its arrays


COUNTS = {
    ("resnet18", 10): 11_181_642, ("resnet34", 10): 21_289_802, ("resnet50", 4): 23_516_228,
    ("vit_b16", 7): 85_804_039, ("vit_s16", 4): 21_667_204, ("lenet5", 10): 62_050, ("cnn", 10): 878_538,
    ("efficientnet_lite0", 10): 3_383_818, ("gru", 64): 24_896,
}  # fmt: skip
"""The reference code's trainable parameters at 3 x 32 x 32. resnet18: torchvision's published 11,689,512, minus 513,000
of its head, plus 5,130 of this one. gru: 64 x 32 + 32 x 192 + 192 + 64 x 192 + 64 + 64 x 64 + 64."""


def params_of(classes=10, **settings):
    config = Config(**settings)
    is_sequence = MODELS[config.model].is_sequence
    task = resolve.model.named_task(config, (8,) if is_sequence else CIFAR, classes)
    return jax.eval_shape(task.init, jax.random.key(0)).params


@pytest.mark.parametrize(("model", "classes"), COUNTS)
def test_named_model_has_the_published_number_of_parameters(model, classes):
    params = params_of(classes, model=model)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[model, classes]


def test_stem_and_norm_follow_the_settings():
    other = params_of(model="resnet18_cifar", norm_layers="group")
    assert params_of(model="resnet18")["conv1"]["kernel"].shape == (7, 7, 3, 64)
    assert other["conv1"]["kernel"].shape == (3, 3, 3, 64)


def test_run_starts_from_pretrained_weights_with_a_new_head(tmp_path):
    config = Config(model="resnet18", clients=2, join_ratio=1.0, seed=3)
    task = resolve.model.named_task(config, (28, 28, 1), 3)
    path = tmp_path / "weights.safetensors"
    saved = worlds.random_variables(task)
    pretrained.save(path, saved, "resnet18")
    x = np.zeros((6, 28, 28, 1), np.uint8)
    y = np.arange(6) % 3
    parts = ([[0], [1]], [[2], []], [[], [3]])
    run = fv.simulation(dataclasses.replace(config, init=path), data=(x, y), partition=parts)
    params, stats = run.state.variables
    head = jax.jit(lambda key: run.task.init(key).params["classifier"])(jax.random.key(3))
    worlds.assert_close(params["classifier"], head, 1e-6)
    chex.assert_trees_all_equal(params, {**saved.params, "classifier": params["classifier"]})
    chex.assert_trees_all_equal(stats, saved.stats)
    assert np.abs(head["kernel"] - saved.params["classifier"]["kernel"]).max() > 0
