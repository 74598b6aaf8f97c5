"""Weights from a file: the logits recorded from torch, and an error of one line for every other file."""

import functools
import json
import math
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import unflatten_dict
from support import worlds
from support.files import usage_error

from fedvg_jax.core.types import Variables
from fedvg_jax.models import pretrained, task as tasks
from fedvg_jax.models.resnet import ResNet
from fedvg_jax.models.vit import ViT

CLASSES, IMAGE = 3, (20, 17, 3)
BASIC = {"depths": (1, 1), "bottleneck": False, "width": 4, "stem": "imagenet", "norm": "batch"}
VIT = {"patch": 4, "width": 8, "depth": 2, "heads": 2, "image_size": 12}
GROUPS = BASIC | {"width": 48, "stem": "cifar", "norm": "group"}
CASES = {
    "basic": ("resnet18", BASIC),
    "bottleneck": ("resnet18", BASIC | {"bottleneck": True}),
    "cifar stem, group norm": ("resnet18", GROUPS),
    "timm": ("vit_s16", VIT),
    "torchvision": ("vit_b16", VIT),
}
"""Architecture, and options of a smaller network."""

SHAPES = json.loads(Path(__file__).with_name("torch_shapes.json").read_text(encoding="utf-8"))
"""Case -> names and shapes of the tensors of these networks in torchvision and timm, in their order."""


def tensors(case) -> dict[str, np.ndarray]:
    """Returns fixed values: NumPy guarantees that a RandomState's stream never changes."""
    rng = np.random.RandomState(0)
    values = {}
    for name, shape in SHAPES[case].items():
        normal = rng.standard_normal(shape).astype(np.float32)
        values[name] = normal * np.float32(math.prod(shape[1:]) ** -0.5)
        if "var" in name or (len(shape) == 1 and name.endswith("weight")):
            values[name] = np.float32(1) + normal**2 / 4
        if "num_batches" in name:
            values[name] = np.int64(7)
    return values


def write(path, values):
    safetensors.numpy.save_file(
        {name: np.asarray(value) for name, value in values.items()}, path, {"format": "pt"}
    )
    return path


# --- ours


def module(case):
    architecture, options = CASES[case]
    network = ResNet if architecture == "resnet18" else ViT
    return network(CLASSES, **options)


@functools.cache
def abstract(case) -> Variables:
    """Returns abstract variables; loading needs shapes only."""
    task = tasks.classification(module(case), CLASSES, IMAGE)
    return jax.eval_shape(task.init, jax.random.key(0))


def loaded(case, path) -> Variables:
    """Returns variables from a file, with the file's head."""
    return pretrained.load(write(path, tensors(case)), abstract(case), CASES[case][0], head=True)


# by torch 2.13.0 on a CPU, from these tensors and images
RECORDED = {
    ("basic", False): [[1.79495, 1.92286, 0.08286], [1.80206, 2.00211, 0.03337]],
    ("basic", True): [[0.39878, 2.4492, -0.37767], [0.20216, 2.22308, -0.60508]],
    ("bottleneck", False): [[1.63302, -0.19471, 2.26892], [1.67018, -0.20512, 2.26792]],
    ("bottleneck", True): [[-0.11096, -2.36836, -0.7103], [0.47543, -1.96406, 0.39128]],
    ("cifar stem, group norm", False): [
        [-3.43597, -1.84128, -2.27657],
        [-3.45491, -1.88919, -2.26521],
    ],
    ("timm", False): [[-1.97453, 0.1586, -1.56038], [-1.99283, 0.19783, -1.54457]],
    ("torchvision", False): [[-1.97453, 0.1586, -1.56038], [-1.99283, 0.19783, -1.54457]],
}


@pytest.mark.parametrize(("case", "train"), RECORDED)
def test_converted_weights_give_logits_recorded_from_torch(tmp_path, case, train):
    """With two rows of padding behind the four images."""
    params, stats = loaded(case, tmp_path / "model.safetensors")
    images = np.random.RandomState(1).random_sample((4, *IMAGE)).astype(np.float32)
    x = jnp.concatenate([images, jnp.full((2, *IMAGE), 0.5)])
    arrays = {"params": params, "batch_stats": stats}
    apply = module(case).apply
    run = worlds.jit(lambda: apply(arrays, x, jnp.arange(6) < 4, train, mutable=["batch_stats"]))
    np.testing.assert_allclose(run()[0][:2], RECORDED[case, train], rtol=1e-4, atol=1e-4)


# --- what is read and what is not


def test_torchvisions_published_vit_names_are_read(tmp_path):
    """vit_b_16-c867db91.pth calls `mlp.0` and `mlp.3` `mlp.linear_1` and `mlp.linear_2`."""
    path = tmp_path / "model.safetensors"
    values = tensors("torchvision")
    new = pretrained.load(write(path, values), abstract("torchvision"), "vit_b16").params
    for ours, theirs in ((".mlp.0.", ".mlp.linear_1."), (".mlp.3.", ".mlp.linear_2.")):
        values = {name.replace(ours, theirs): value for name, value in values.items()}
    old = pretrained.load(write(path, values), abstract("torchvision"), "vit_b16").params
    del old["classifier"], new["classifier"]
    chex.assert_trees_all_equal(old, new)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layer1.0.conv1.weight", None),
        ("layer2.1.conv1.weight", (8, 8, 3, 3)),
        ("conv1.weight", (4, 3, 3, 3)),
    ],
)
def test_first_tensor_that_is_missing_superfluous_or_of_another_shape_is_named(
    tmp_path, name, shape
):
    values = {**tensors("basic"), name: np.zeros(shape or (), np.float32)}
    if shape is None:
        del values[name]
    path = write(tmp_path / "model.safetensors", values)
    with usage_error("model.safetensors", name):
        pretrained.load(path, abstract("basic"), "resnet18")


# --- and written


@pytest.mark.parametrize("case", CASES)
def test_saved_weights_have_torchs_names_and_load_bit_for_bit(tmp_path, case):
    """Names, shapes and values equal those of torch's state dictionary; only the counters are 0."""
    architecture = CASES[case][0]
    path = tmp_path / "saved.safetensors"
    variables = loaded(case, tmp_path / "model.safetensors")
    pretrained.save(path, variables, architecture)
    expected = tensors(case)
    for name in expected:
        expected[name] *= "num_batches" not in name
    chex.assert_trees_all_equal(pretrained.read(path), expected)
    again = pretrained.load(path, abstract(case), architecture, head=True)
    chex.assert_trees_all_equal(again, variables)
    fresh = pretrained.load(path, abstract(case), architecture).params["classifier"]
    assert fresh == abstract(case).params["classifier"], "the head is not read for another task"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_model_loads_bit_for_bit(tmp_path, dtype):
    shapes = {"a/kernel": (2, 3), "a/bias": (3,), "scale": (), "conv/kernel": (1, 2, 3, 4)}
    values = {path: jnp.arange(math.prod(shape), dtype=dtype) for path, shape in shapes.items()}
    params = {path: values[path].reshape(shape) for path, shape in shapes.items()}
    variables = Variables(unflatten_dict(params, "/"), {"bn": {"mean": jnp.ones(2, dtype)}})
    path = tmp_path / "own.safetensors"
    pretrained.save(path, variables, "own")
    result = pretrained.load(path, jax.tree.map(jnp.zeros_like, variables), "own", head=True)
    chex.assert_trees_all_equal(result, variables)
    assert pretrained.read(path)["a.weight"].shape == (3, 2)
    assert list(tmp_path.iterdir()) == [path]
