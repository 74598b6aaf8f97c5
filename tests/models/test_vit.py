"""Vision transformers: published sizes and blocks, initialisation, images of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch
from fedvg_jax.models import task as tasks
from fedvg_jax.models import vit

TINY = {"patch": 4, "width": 8, "depth": 1, "heads": 2, "image_size": 8}


def make(image, **options):
    return tasks.classification(vit.ViT(3, **{**TINY, **options}), 3, image, vit.blocks)


@pytest.fixture(scope="module")
def variables():
    """Random arrays, which fit images of any size."""
    return worlds.random_variables(make((6, 9, 3)))


def batch(image, n=4) -> Batch:
    x = np.random.default_rng(0).integers(0, 256, (n, *image), np.uint8)
    return Batch(jnp.asarray(x), jnp.arange(n, dtype=jnp.int32) % 3)


def test_parameters_are_in_fourteen_blocks():
    """The reference code's block map: 12 encoder blocks, base and head."""
    params, stats = jax.eval_shape(tasks.classification(vit.vit_s16(4), 4, (244, 224, 3)).init, jax.random.key(0))
    assert (len(tree.paths(params)), stats) == (152, {})
    blocks = [vit.blocks(path) for path in tree.paths(params)]
    assert {name: blocks.count(name) for name in blocks} == {
        **{f"block_{i}": 12 for i in range(12)},
        "base": 6,
        "classifier": 2,
    }


@pytest.mark.parametrize(
    ("scheme", "deviations", "zero"),
    [  # torch's U(+-b) has deviation b / sqrt 3; xavier's sqrt(2 / (fan_in + fan_out))
        ("timm", {"qkv": 0.02, "proj": 0.02, "fc1": 0.02, "fc2": 0.02, "patch_embed": (3 * 192) ** -0.5},
         {"qkv/bias", "proj/bias", "fc1/bias", "fc2/bias"}),
        ("torchvision", {"qkv": (2 / 256) ** 0.5, "proj": (3 * 64) ** -0.5, "fc1": (2 / 320) ** 0.5,
                         "fc2": (2 / 320) ** 0.5, "patch_embed": 192**-0.5},
         {"qkv/bias", "proj/bias", "patch_embed/bias", "cls_token"}),
    ],
)  # fmt: skip
def test_initialisation_is_that_of_its_library(scheme, deviations, zero):
    """The standard deviation of n draws has a relative error of at most 6 / sqrt(2 n)."""
    init = worlds.jit(make((8, 8, 3), width=64, patch=8, scheme=scheme).init)
    params = jax.device_get(init(jax.random.key(0, impl="rbg")).params)
    leaves = dict(zip(tree.paths(params), jax.tree.leaves(params), strict=True))
    for layer, deviation in deviations.items():
        kernel = params[layer] if layer == "patch_embed" else params["block_0"][layer]
        assert kernel["kernel"].std() == pytest.approx(deviation, rel=6 / (2 * kernel["kernel"].size) ** 0.5), layer
    assert params["pos_embed"].std() == pytest.approx(0.02, rel=6 / (2 * params["pos_embed"].size) ** 0.5)
    norms = {path for path in leaves if "norm" in path and path.endswith("bias")}
    assert {path for path, leaf in leaves.items() if not leaf.any()} == norms | {
        path for path in leaves if any(path.endswith(name) for name in zero)
    }
    assert all((leaf == 1).all() for path, leaf in leaves.items() if path.endswith("scale"))
    assert all(np.abs(leaf).max() < 1e-5 for path, leaf in leaves.items() if path.endswith(("fc1/bias", "cls_token")))
    assert 0.8 / 8 < np.abs(leaves["classifier/kernel"]).max() <= 1 / 8


def test_grayscale_equals_three_equal_channels(variables):
    task, gray = make((6, 9, 1)), batch((6, 9, 1))
    both = gray, Batch(jnp.repeat(gray.x, 3, -1), gray.y)
    actual, expected = worlds.jit(lambda: [task.predict(*variables, rows) for rows in both])()
    # the compiler may round the two programs differently: by 2e-7 of the largest output with AVX2
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * jnp.abs(expected).max())


def test_resizing_is_bilinear_with_half_pixel_centres_and_antialiasing():
    """Doubling a ramp i + 1/2 of 2 samples it at 1/4, 3/4, 5/4, 7/4, clamped. Halving one of 8 has the triangle filter
    of radius 2: weights (1, 3, 3, 1) / 8, and (3, 3, 1) / 7 at the border."""
    ramp = jnp.arange(8.0) + 0.5
    along = lambda n, size: vit.resize(jnp.broadcast_to(ramp[:n, None], (n, n))[None, :, :, None], size)[0, :, 0, 0]  # noqa: E731
    np.testing.assert_allclose(along(2, 4), [0.5, 0.75, 1.25, 1.5], rtol=1e-6)
    border = (3 * 0.5 + 3 * 1.5 + 2.5) / 7
    np.testing.assert_allclose(along(8, 4), [border, 3, 5, 8 - border], rtol=1e-6)


def test_patches_go_row_by_row_with_channels_last():
    x = jnp.arange(4 * 6 * 2).reshape(1, 4, 6, 2)
    actual = vit.patches(x, 2)
    assert actual.shape == (1, 6, 8)
    for n, (i, j) in enumerate((i, j) for i in (0, 2) for j in (0, 2, 4)):
        np.testing.assert_array_equal(actual[0, n], x[0, i : i + 2, j : j + 2].reshape(-1))


def test_attention_equals_its_equation():
    """With one token every head returns that token's value; with equal keys, the mean of the values."""
    qkv = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 18)), jnp.float32)
    np.testing.assert_allclose(vit.attention(qkv[:, :1], 3), qkv[:, :1, 12:], rtol=1e-6)
    equal = qkv.at[:, :, 6:12].set(1)
    mean = jnp.broadcast_to(qkv[:, :, 12:].mean(1, keepdims=True), (2, 5, 6))
    np.testing.assert_allclose(vit.attention(equal, 3), mean, rtol=1e-5, atol=1e-6)
    q, k, v = np.split(np.asarray(qkv[0], np.float64), 3, -1)
    scores = np.exp(q[:, 2:4] @ k[:, 2:4].T / np.sqrt(2))
    expected = scores / scores.sum(1, keepdims=True) @ v[:, 2:4]
    np.testing.assert_allclose(vit.attention(qkv, 3)[0, :, 2:4], expected, rtol=1e-4, atol=1e-6)
