"""EfficientNet-Lite0: its blocks, and the outputs of efficientnet-lite-pytorch on the same weights."""

import functools
import zlib

import jax
import numpy as np

import fedvg_jax as fv
from fedvg_jax.models import pretrained
from fedvg_jax.runs.assemble import registry

MODEL = "efficientnet_lite0"

RECORDED = {
    "logits": [[-1.2429515, -1.1282033, -2.1419272], [-1.5424136, -1.9019262, -2.6753984]],
    "features": [[0.0, 0.9073571, 0.0], [0.0, 2.6033568, 0.0]],
}
"""Classes 0, 3 and 9, and features 0, 500 and 1279, of the two rows, by efficientnet-lite-pytorch."""


def make_task(norm="batch"):
    return registry.named_task(fv.Config(model=MODEL, norm_layers=norm), (32, 32, 3), 10)


@functools.cache
def shapes(norm="batch"):
    return jax.eval_shape(make_task(norm).init, jax.random.key(0))


def seeded(name, shape):
    """Returns random weights that depend on the name and shape of a tensor only."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return np.zeros((), np.int64)
    if len(shape) == 1:
        is_positive = name.endswith(("running_var", "bn0.weight", "bn1.weight", "bn2.weight"))
        return (1 + rng.uniform(0, 0.3, shape) if is_positive else rng.normal(0, 0.1, shape)).astype(np.float32)
    return rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)


def seeded_file(path):
    """Writes a file of the model's tensors with random weights."""
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes())
    pretrained.save(path, blank, MODEL)
    pretrained.write(path, {name: seeded(name, array.shape) for name, array in pretrained.read(path).items()})
    return path


def test_outputs_equal_those_recorded_from_pytorch(tmp_path):
    variables = pretrained.load(seeded_file(tmp_path / "lite0.safetensors"), shapes(), MODEL, head=True)
    x = np.random.default_rng(32).normal(size=(2, 32, 32, 3)).astype(np.float32)
    batch, mask = fv.Batch(x, np.zeros(2, np.int32)), np.ones(2, bool)
    forward = jax.jit(lambda variables: make_task().forward(*variables, batch, mask, False))
    (_, logits, features), _ = forward(variables)
    np.testing.assert_allclose(logits[:, [0, 3, 9]], RECORDED["logits"], atol=1e-4)
    np.testing.assert_allclose(features[:, [0, 500, 1279]], RECORDED["features"], atol=1e-4)
