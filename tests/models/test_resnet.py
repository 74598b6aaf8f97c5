"""ResNets: the published stem and blocks, torchvision's initialisation, grayscale images, and group normalisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, ClientReturn, Data
from fedvg_jax.models import resnet
from fedvg_jax.models import task as tasks
from fedvg_jax.models.layers import GroupNorm
from fedvg_jax.weightings import signals


def make(image, **options):
    return tasks.classification(resnet.ResNet(3, (1,), **options), 3, image, resnet.blocks_residual)


# --- padding


def test_scores_are_finite_beside_empty_groups_and_rows_that_differ_from_their_padding():
    """BatchNorm divides by the standard deviation, here of two equal rows and of none: by sqrt(1e-5) in every layer."""
    task = tasks.classification(resnet.ResNet(3, (1, 2, 2, 2), width=2), 3, (16, 16, 1))
    x = np.random.default_rng(0).normal(size=(8, 16, 16, 1)).astype(np.float32)
    x[7], rows = x[6], jnp.array([[0, 1, 2], [3, 4, 5], [6, 7, -1]])
    variables = worlds.random_variables(task)
    data = Data(Batch(jnp.asarray(x), jnp.arange(8, dtype=jnp.int32) % 3), rows, rows, rows)
    score = worlds.jit(signals.validation_gradient(task, True, groups_per_pass=2))
    gradient = score(worlds.hyper(), ClientReturn(variables, jnp.int32(1), variables.params), data)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# --- the published architectures


def test_resnet18_has_six_stages_and_ten_blocks():
    """The reference code's six, and the paper's eight residual blocks with stem and head."""
    task = tasks.classification(resnet.resnet18(10), 10, (32, 32, 3))
    variables = jax.eval_shape(task.init, jax.random.key(0))
    names_of_blocks = resnet.blocks_stage, resnet.blocks_residual
    stages, blocks = ({name(path) for path in tree.paths(variables.params)} for name in names_of_blocks)
    assert stages == {"base", "layer1", "layer2", "layer3", "layer4", "classifier"}
    assert blocks == {"stem", "classifier"} | {f"layer{s}_{i}" for s in (1, 2, 3, 4) for i in (0, 1)}
    assert {resnet.blocks_residual(path) for path in tree.paths(variables.stats)} == blocks - {"classifier"}


def test_initialisation_is_torchvision_s():
    """Convolutions N(0, 2 / fan_out): the mean square of n weights is 2 / fan_out up to a factor 1 +- 6 sqrt(2 / n).
    Normalisation has scale 1 and bias 0, also at the end of a block."""
    init = worlds.jit(make((8, 8, 3), width=16, bottleneck=True).init)
    params = jax.device_get(init(jax.random.key(0, impl="rbg")).params)
    for path, leaf in zip(tree.paths(params), jax.tree.leaves(params), strict=True):
        if leaf.ndim == 4:
            fan_out = leaf.shape[0] * leaf.shape[1] * leaf.shape[3]
            assert abs(np.square(leaf).mean() * fan_out / 2 - 1) <= 6 * math.sqrt(2 / leaf.size), path
        elif path.endswith("scale"):
            assert (leaf == 1).all()
        elif not path.startswith("classifier"):
            assert (leaf == 0).all()
    bound = params["classifier"]["kernel"].shape[0] ** -0.5
    assert 0.8 * bound < np.abs(params["classifier"]["kernel"]).max() <= bound


# --- laws


def test_grayscale_equals_three_equal_channels():
    task, x = make((9, 12, 1), width=4), np.random.default_rng(0).integers(0, 256, (6, 9, 12, 1), np.uint8)
    variables = worlds.random_variables(task)
    assert variables.params["conv1"]["kernel"].shape == (7, 7, 3, 4)
    both = [Batch(jnp.asarray(images), jnp.zeros(6, jnp.int32)) for images in (x, x.repeat(3, -1))]
    np.testing.assert_array_equal(*worlds.jit(lambda: [task.predict(*variables, rows) for rows in both])())


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (6, 2)])
def test_group_norm_equals_its_equation(x64, channels, groups):
    rng = np.random.default_rng(0)
    x, scale, bias = rng.normal(3, 2, (2, 3, 5, channels)), rng.normal(size=channels), rng.normal(size=channels)
    params = {"params": {"scale": jnp.asarray(scale), "bias": jnp.asarray(bias)}}
    actual = worlds.jit(lambda params, x: GroupNorm().apply(params, x, jnp.ones(2, bool), True))(params, jnp.asarray(x))
    parts = np.stack(np.split(x, groups, -1))
    mean, var = parts.mean((2, 3, 4), keepdims=True), parts.var((2, 3, 4), keepdims=True)
    expected = np.concatenate((parts - mean) / np.sqrt(var + 1e-5), -1) * scale + bias
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
