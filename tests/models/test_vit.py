"""Vision transformers: published blocks, initialisation, grayscale images; `test_pretrained.py` has their outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch
from fedvg_jax.models import task as tasks
from fedvg_jax.models import vit


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
    module = vit.ViT(3, patch=8, width=64, depth=1, heads=2, image_size=8, scheme=scheme)
    init = worlds.jit(tasks.classification(module, 3, (8, 8, 3)).init)
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


def test_grayscale_equals_three_equal_channels():
    module = vit.ViT(3, patch=4, width=8, depth=1, heads=2, image_size=8)
    task = tasks.classification(module, 3, (6, 9, 1))
    variables, x = worlds.random_variables(task), np.random.default_rng(0).integers(0, 256, (4, 6, 9, 1), np.uint8)
    both = [Batch(jnp.asarray(images), jnp.zeros(4, jnp.int32)) for images in (x, x.repeat(3, -1))]
    actual, expected = worlds.jit(lambda: [task.predict(*variables, rows) for rows in both])()
    # the compiler may round the two programs differently: by 2e-7 of the largest output with AVX2
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * jnp.abs(expected).max())
