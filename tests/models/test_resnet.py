"""ResNets: torchvision's sizes and blocks, its max-pool, padding nobody sees."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, Variables
from fedvg_jax.models import resnet
from fedvg_jax.models import task as tasks
from fedvg_jax.models.conv.patches import by_name
from fedvg_jax.models.norm import GroupNorm

SMALL = {
    "basic": {"depths": (1, 1)},
    "bottleneck": {"depths": (1,), "bottleneck": True},
    "group norm, cifar stem": {"depths": (1,), "norm": "group", "stem": "cifar", "width": 48},
}


def make(image, conv="lax", **options):
    module = resnet.ResNet(3, by_name(conv), **{"width": 4, **options})
    return tasks.classification(module, 3, image, resnet.blocks_residual)


def batch(image, n=6, seed=0) -> Batch:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (n, *image), np.uint8), rng.integers(0, 3, n)
    return Batch(jnp.asarray(x), jnp.asarray(y, jnp.int32))


def filled(task) -> Variables:
    """Random arrays of the model's shapes, scales and variances positive; nothing is compiled."""
    rng = np.random.default_rng(1)
    with jax.enable_x64(False):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
    values = [
        1 + rng.uniform(0, 0.3, leaf.shape) if leaf.ndim == 1 else rng.normal(size=leaf.shape) * leaf.shape[-1] ** -0.5
        for leaf in jax.tree.leaves(shapes)
    ]
    return jax.tree.structure(shapes).unflatten([jnp.asarray(value, float) for value in values])


def trainer(task):
    """(batch, mask) -> ((loss, statistics), gradients) of a training step"""
    variables = filled(task)
    return worlds.jit(lambda batch, mask: jax.value_and_grad(task.loss, has_aux=True)(*variables, batch, mask, True))


def paths(model, classes=10, image=(32, 32, 3)):
    task = tasks.classification(model(classes), classes, image)
    variables = jax.eval_shape(task.init, jax.random.key(0))
    return tree.paths(variables.params), variables


# --- the published architectures


@pytest.mark.parametrize(
    ("model", "classes", "tensors", "statistics", "scalars"),
    [
        (resnet.resnet18, 10, 62, 40, 11_181_642),
        (resnet.resnet34, 10, 110, 72, 21_289_802),
        (resnet.resnet50, 4, 161, 106, 23_516_228),
        (resnet.resnet50, 200, 161, 106, 23_917_832),
    ],
)
def test_torchvision_s_parameters(model, classes, tensors, statistics, scalars):
    """The reference code's counts; ResNet-34's is torchvision's 21,797,672 at 1,000 classes less 990 x 513."""
    found, variables = paths(model, classes)
    assert (len(found), tree.size(variables.params)) == (tensors, scalars)
    assert len(jax.tree.leaves(variables.stats)) == statistics


def test_parameters_do_not_depend_on_the_image():
    counts = {tree.size(paths(resnet.resnet18, image=i)[1].params) for i in [(28, 28, 1), (64, 64, 3), (244, 224, 3)]}
    assert counts == {11_181_642}


@pytest.mark.parametrize(("stem", "last"), [("cifar", 4), ("imagenet", 1)])
def test_the_cifar_stem_is_a_3x3_convolution_and_no_pool(stem, last):
    """32 x 32 images reach the last convolution at an eighth of their size; else at a thirty-second."""
    convolved = []

    def spy(x, w, *args, **kwargs):
        convolved.append((x.shape[1], w.shape[0]))
        return by_name("lax")(x, w, *args, **kwargs)

    paths(lambda classes: resnet.resnet18(classes, spy, stem=stem))
    assert convolved[0] == (32, 3 if stem == "cifar" else 7) and convolved[-1] == (last, 3)


def test_resnet18_has_six_stages_and_ten_blocks():
    """The reference code's six, and the paper's eight residual blocks with stem and head."""
    found, variables = paths(resnet.resnet18)
    stages, blocks = ({name(path) for path in found} for name in (resnet.blocks_stage, resnet.blocks_residual))
    assert stages == {"base", "layer1", "layer2", "layer3", "layer4", "classifier"}
    assert blocks == {"stem", "classifier"} | {f"layer{s}_{i}" for s in (1, 2, 3, 4) for i in (0, 1)}
    assert {resnet.blocks_residual(path) for path in tree.paths(variables.stats)} == blocks - {"classifier"}


@pytest.mark.parametrize(
    ("path", "stage", "block"),
    [
        ("conv1/kernel", "base", "stem"),
        ("bn1/scale", "base", "stem"),
        ("layer2_0/bn1/mean", "layer2", "layer2_0"),
        ("layer2_0/downsample_1/bias", "layer2", "layer2_0"),
        ("layer3_5/conv3/kernel", "layer3", "layer3_5"),
        ("classifier/bias", "classifier", "classifier"),
    ],
)
def test_a_tensor_is_in_the_block_its_name_says(path, stage, block):
    assert (resnet.blocks_stage(path), resnet.blocks_residual(path)) == (stage, block)


def test_it_starts_as_torchvision_s():
    """Convolutions N(0, 2 / fan_out), so the mean square of n weights is 2 / fan_out up to 6 sqrt(2 / n) of it;
    normalisation 1 and 0, the last of a block too."""
    params = worlds.jit(make((8, 8, 3), width=16, **SMALL["bottleneck"]).init)(jax.random.key(0, impl="rbg")).params
    for path, leaf in zip(tree.paths(params), jax.tree.leaves(params), strict=True):
        if leaf.ndim == 4:
            fan_out = leaf.shape[0] * leaf.shape[1] * leaf.shape[3]
            assert abs(jnp.square(leaf).mean() * fan_out / 2 - 1) <= 6 * math.sqrt(2 / leaf.size), path
        elif path.endswith("scale"):
            assert (leaf == 1).all()
        elif not path.startswith("classifier"):
            assert (leaf == 0).all()
    bound = params["classifier"]["kernel"].shape[0] ** -0.5
    assert 0.8 * bound < jnp.abs(params["classifier"]["kernel"]).max() <= bound


# --- laws


@pytest.mark.parametrize("kind", SMALL)
def test_padded_rows_change_nothing_and_every_tensor_is_trained(kind):
    image = (9, 12, 3)
    task, rows, mask = make(image, **SMALL[kind]), batch(image), jnp.arange(6) < 4
    other, run = Batch(rows.x.at[4:].set(255), rows.y.at[4:].set(2)), trainer(task)
    found = run(rows, mask)
    jax.tree.map(np.testing.assert_array_equal, run(other, mask), found)
    (_, stats), grads = found
    assert all(leaf.any() for leaf in jax.tree.leaves(grads))
    assert (stats == {}) == (SMALL[kind].get("norm") == "group")


def test_grayscale_is_three_equal_channels():
    task, gray = make((9, 12, 1), depths=(1,)), batch((9, 12, 1))
    variables = filled(task)
    assert variables.params["conv1"]["kernel"].shape == (7, 7, 3, 4)
    predict = worlds.jit(lambda rows: task.predict(*variables, rows))
    np.testing.assert_array_equal(predict(gray), predict(Batch(jnp.repeat(gray.x, 3, -1), gray.y)))


def test_it_is_the_same_with_any_convolution(x64):
    """Two bottlenecks have every kind: 7x7 and, with stride 1 and 2, 3x3 and 1x1; Winograd takes 16 channels."""
    image, mask = (9, 12, 3), jnp.arange(6) < 4
    lax, *others = (make(image, conv, depths=(1, 1), bottleneck=True, width=16) for conv in ("lax", "gemm", "winograd"))
    variables, rows = filled(lax), batch(image)

    def run(task):
        return worlds.jit(task.loss, static_argnums=4)(*variables, rows, mask, True)

    expected = run(lax)
    for other in others:
        worlds.assert_close(run(other), expected, 1e-9)


@pytest.mark.parametrize("conv", ["gemm", "lax"])
def test_taps_that_meet_only_padding_have_gradient_zero(conv):
    """The last stage of ResNet-18 at 32 x 32 goes from 2 x 2 to 1 x 1, and so does here the second at 8 x 8: of a 3x3
    kernel on one pixel only the centre meets it, of the strided one on four the last four do."""
    run = trainer(make((8, 8, 3), conv, depths=(1, 1)))
    layer = run(batch((8, 8, 3)), jnp.ones(6, bool))[1]["layer2_0"]
    for name, live in {"conv1": np.s_[1:, 1:], "conv2": np.s_[1:2, 1:2]}.items():
        grad, alive = np.asarray(layer[name]["kernel"]), np.zeros((3, 3), bool)
        alive[live] = True
        assert (grad[~alive] == 0).all() and grad[alive].any((1, 2)).all()


@pytest.mark.parametrize("size", [(16, 12), (7, 5), (2, 3), (1, 1)])
def test_max_pool_is_the_windowed_maximum_and_its_gradient(size):
    """3x3, stride 2, one pixel of padding; few different values, so that ties abound, and all below zero."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-9, -5, (2, *size, 3)), jnp.float32)

    def windowed(x):
        return nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))

    weights = jnp.asarray(rng.integers(1, 9, windowed(x).shape), jnp.float32)
    run = worlds.jit(lambda x: [(y, back(weights)) for y, back in (jax.vjp(f, x) for f in (resnet.max_pool, windowed))])
    jax.tree.map(np.testing.assert_array_equal, *run(x))


def test_max_pool_passes_on_what_is_not_a_number():
    x = jnp.zeros((1, 4, 4, 1)).at[0, 1, 1, 0].set(jnp.nan)
    np.testing.assert_array_equal(jnp.isnan(resnet.max_pool(x))[0, :, :, 0], [[True, True], [True, True]])


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 16), (6, 2)])
def test_group_norm_is_its_equation(x64, channels, groups):
    rng = np.random.default_rng(0)
    x, scale, bias = rng.normal(3, 2, (2, 3, 5, channels)), rng.normal(size=channels), rng.normal(size=channels)
    params = {"params": {"scale": jnp.asarray(scale), "bias": jnp.asarray(bias)}}
    found = GroupNorm().apply(params, jnp.asarray(x), jnp.ones(2, bool), True)
    parts = np.stack(np.split(x, groups, -1))
    mean, var = parts.mean((2, 3, 4), keepdims=True), parts.var((2, 3, 4), keepdims=True)
    expected = np.concatenate((parts - mean) / np.sqrt(var + 1e-5), -1) * scale + bias
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
