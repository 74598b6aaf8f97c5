"""ResNets, EfficientNet-Lite0 and vision transformers: published blocks, outputs, initialisation, grayscale images."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.core import tree
from fedvg_jax.models import pretrained, resnet, task as tasks, vit
from fedvg_jax.models.layers import GroupNorm, rgb

# --- the published architectures


def initial(module):
    """Returns the parameters of a network at its initialisation, by path."""
    init = worlds.jit(tasks.classification(module, 3, (8, 8, 3)).init)
    return tree.by_path(jax.device_get(init(jax.random.key(0, impl="rbg")).params))


def test_initialisation_is_torchvision_s():
    """Convolutions N(0, 2 / fan_out): the mean square of n weights is 2 / fan_out up to a factor 1 +- 6 sqrt(2 / n).
    Normalisation has scale 1 and bias 0, also at the end of a block."""
    leaves = initial(resnet.ResNet(3, (1,), width=16, bottleneck=True))
    head = leaves.pop("classifier/kernel")
    for path, leaf in leaves.items():
        if leaf.ndim == 4:
            fan_out = leaf.size / leaf.shape[2]
            assert np.square(leaf).mean() * fan_out / 2 == pytest.approx(
                1, abs=6 * (2 / leaf.size) ** 0.5
            )
        elif not path.startswith("classifier"):
            assert (leaf == path.endswith("scale")).all(), path
    assert 0.8 < np.abs(head).max() * len(head) ** 0.5 <= 1


# --- laws


def test_a_grayscale_image_becomes_three_equal_channels():
    x = np.arange(12).reshape(2, 2, 3, 1)
    np.testing.assert_array_equal(rgb(x), x.repeat(3, -1))
    assert rgb(x.repeat(2, -1)).shape[-1] == 2


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (6, 2)])
def test_group_norm_equals_its_equation(x64, channels, groups):
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (2, 3, 5, channels))
    scale = rng.normal(size=channels)
    bias = rng.normal(size=channels)
    params = {"params": {"scale": jnp.asarray(scale), "bias": jnp.asarray(bias)}}
    actual = worlds.jit(lambda params, x: GroupNorm().apply(params, x, jnp.ones(2, bool), True))(
        params, jnp.asarray(x)
    )
    parts = np.stack(np.split(x, groups, -1))
    mean = parts.mean((2, 3, 4), keepdims=True)
    var = parts.var((2, 3, 4), keepdims=True)
    expected = np.concatenate((parts - mean) / np.sqrt(var + 1e-5), -1) * scale + bias
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


# --- EfficientNet-Lite0: the outputs of efficientnet-lite-pytorch on the same weights


MODEL = "efficientnet_lite0"

RECORDED = {
    "logits": [[-1.2429515, -1.1282033, -2.1419272], [-1.5424136, -1.9019262, -2.6753984]],
    "features": [[0.0, 0.9073571, 0.0], [0.0, 2.6033568, 0.0]],
}
"""Classes 0, 3 and 9, and features 0, 500 and 1279, of the two rows, by efficientnet-lite-pytorch."""


TASK = resolve.model.named_task(fv.Config(model=MODEL), (32, 32, 3), 10)


def seeded(name, shape):
    """Returns random weights that depend on the name and shape of a tensor only."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return np.zeros((), np.int64)
    if name.endswith(("running_var", "bn0.weight", "bn1.weight", "bn2.weight")):
        return np.float32(1 + rng.uniform(0, 0.3, shape))
    deviation = 0.1 if len(shape) == 1 else (2 / np.prod(shape[1:])) ** 0.5
    return np.float32(rng.normal(0, deviation, shape))


def test_outputs_equal_those_recorded_from_pytorch(tmp_path):
    path = tmp_path / "lite0.safetensors"
    shapes = jax.eval_shape(TASK.init, jax.random.key(0))
    pretrained.save(path, jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes), MODEL)
    blank = pretrained.read(path)
    pretrained.write(path, {name: seeded(name, blank[name].shape) for name in blank})
    variables = pretrained.load(path, shapes, MODEL, head=True)
    x = np.random.default_rng(32).normal(size=(2, 32, 32, 3)).astype(np.float32)
    batch = fv.Batch(x, np.zeros(2, np.int32))
    mask = np.ones(2, bool)
    forward = jax.jit(lambda variables: TASK.forward(*variables, batch, mask, False))
    (_, logits, features), _ = forward(variables)
    np.testing.assert_allclose(logits[:, [0, 3, 9]], RECORDED["logits"], atol=1e-4)
    np.testing.assert_allclose(features[:, [0, 500, 1279]], RECORDED["features"], atol=1e-4)


# --- vision transformers


DEVIATIONS = {  # torch's U(+-b) has deviation b / sqrt 3; xavier's sqrt(2 / (fan_in + fan_out))
    "timm": {"qkv": 0.02, "proj": 0.02, "fc1": 0.02, "fc2": 0.02, "patch_embed": (3 * 192) ** -0.5},
    "torchvision": {
        "qkv": (2 / 256) ** 0.5,
        "proj": (3 * 64) ** -0.5,
        "fc1": (2 / 320) ** 0.5,
        "fc2": (2 / 320) ** 0.5,
        "patch_embed": 192**-0.5,
    },
}
ZERO = {
    "timm": {"qkv/bias", "proj/bias", "fc1/bias", "fc2/bias"},
    "torchvision": {"qkv/bias", "proj/bias", "patch_embed/bias", "cls_token"},
}


@pytest.mark.parametrize("scheme", DEVIATIONS)
def test_initialisation_is_that_of_its_library(scheme):
    """The standard deviation of n draws has a relative error of at most 6 / sqrt(2 n)."""
    module = vit.ViT(3, patch=8, width=64, depth=1, heads=2, image_size=8, scheme=scheme)
    leaves = {path.removeprefix("block_0/"): leaf for path, leaf in initial(module).items()}
    drawn = {f"{layer}/kernel": deviation for layer, deviation in DEVIATIONS[scheme].items()}
    for path, deviation in (drawn | {"pos_embed": 0.02}).items():
        leaf = leaves[path]
        assert leaf.std() == pytest.approx(deviation, rel=6 / (2 * leaf.size) ** 0.5), path
    norms = {path for path in leaves if "norm" in path and path.endswith("bias")}
    assert {path for path, leaf in leaves.items() if not leaf.any()} == norms | ZERO[scheme]
    assert all((leaf == 1).all() for path, leaf in leaves.items() if path.endswith("scale"))
    assert max(np.abs(leaves[path]).max() for path in ("fc1/bias", "cls_token")) < 1e-5
    assert 0.8 / 8 < np.abs(leaves["classifier/kernel"]).max() <= 1 / 8
