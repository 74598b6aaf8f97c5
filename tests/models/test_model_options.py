"""The options of a model, from its flags to its arrays."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax.config import MODELS, Config
from fedvg_jax.models import pretrained
from fedvg_jax.models.resnet import ResNet
from fedvg_jax.runs.assemble import registry, simulation

GREY = fv.Arrays("grey", np.zeros((6, 28, 28, 1), np.uint8), np.arange(6, dtype=np.int32) % 3, ("a", "b", "c"), 6)
COUNTS = {
    ("resnet18", 10): 11_181_642,
    ("resnet34", 10): 21_289_802,
    ("resnet50", 4): 23_516_228,
    ("vit_b16", 7): 85_804_039,
    ("vit_s16", 4): 21_667_204,
    ("lenet5", 10): 62_050,
    ("cnn", 10): 878_538,
    ("efficientnet_lite0", 10): 3_383_818,
    ("gru", 64): 24_896,
}
"""The reference code's trainable parameters at 3 x 32 x 32. resnet18: torchvision's published 11,689,512, minus 513,000
of its head, plus 5,130 of this one. gru: 64 x 32 + 32 x 192 + 192 + 64 x 192 + 64 + 64 x 64 + 64."""


@pytest.fixture
def tiny(monkeypatch):
    """Replaces resnet18 by a network of 4 features and one block."""

    def resnet18(classes, **options):
        return ResNet(classes, (1,), width=4, **options)

    for name in ("resnet18", "resnet18_cifar"):
        monkeypatch.setitem(MODELS, name, MODELS[name]._replace(make=resnet18))
    return Config(model="resnet18")


def abstract(settings, arrays=GREY):
    return jax.eval_shape(registry.make_task(settings, arrays).init, jax.random.key(0))


@functools.cache
def abstract_in_double_precision(model):
    """The arrays of a named model, for images and classes of `COUNTS`."""
    names = tuple(map(str, range(next((classes for name, classes in COUNTS if name == model), 10))))
    arrays = fv.Arrays("rgb", np.zeros((1, 32, 32, 3), np.uint8), np.zeros(1, np.int32), names, 1)
    if MODELS[model].is_sequence:
        arrays = arrays._replace(x=np.zeros((1, 8), np.int32), y=np.zeros((1, 8), np.int32))
    return abstract(Config(model=model), arrays)


@pytest.mark.parametrize(("model", "classes"), COUNTS)
def test_named_model_has_the_published_number_of_parameters(x64, model, classes):
    params = abstract_in_double_precision(model).params
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[model, classes]


def test_stem_and_norm_follow_the_settings(tiny):
    published, other = abstract(tiny), abstract(dataclasses.replace(tiny, model="resnet18_cifar", norm_layers="group"))
    assert published.params["conv1"]["kernel"].shape == (7, 7, 3, 4) and published.stats
    assert other.params["conv1"]["kernel"].shape == (3, 3, 3, 4) and not other.stats


def test_run_starts_from_pretrained_weights_with_a_new_head(tiny, tmp_path):
    path, saved = tmp_path / "weights.safetensors", worlds.random_variables(registry.make_task(tiny, GREY))
    pretrained.save(path, saved, "resnet18")
    settings = dataclasses.replace(tiny, init=path, clients=2, join_ratio=1.0, seed=3)
    parts = ([[0], [1]], [[2], []], [[], [3]])
    run = simulation.simulation(settings, data=GREY, partition=parts)
    params, stats = run.state.variables
    head = jax.jit(lambda key: run.task.init(key).params["classifier"])(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, {**saved.params, "classifier": head})
    jax.tree.map(np.testing.assert_array_equal, stats, saved.stats)
    assert np.abs(head["kernel"] - saved.params["classifier"]["kernel"]).max() > 0
