"""The options of a model, from its flags to its arrays."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from fedvg_jax import config, sim
from fedvg_jax.config import MODELS, Config
from fedvg_jax.config.presets import BUILT_IN
from fedvg_jax.core.types import Batch, UsageError
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.models import pretrained
from fedvg_jax.models.resnet import ResNet
from fedvg_jax.runs import registry, simulation

GREY = Arrays("grey", np.zeros((6, 28, 28, 1), np.uint8), np.arange(6, dtype=np.int32) % 3, ("a", "b", "c"), 6)
COUNTS = {
    ("resnet18", 10): 11_181_642,
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

    monkeypatch.setitem(registry.MODELS, "resnet18", registry.Model(resnet18))
    return Config(model="resnet18")


def abstract(settings, arrays=GREY):
    return jax.eval_shape(registry.make_task(settings, arrays).init, jax.random.key(0))


@functools.cache
def abstract_in_double_precision(model):
    """The arrays of a named model, for images and classes of `COUNTS`."""
    names = tuple(map(str, range(next((classes for name, classes in COUNTS if name == model), 10))))
    arrays = Arrays("rgb", np.zeros((1, 32, 32, 3), np.uint8), np.zeros(1, np.int32), names, 1)
    if MODELS[model].is_sequence:
        arrays = arrays._replace(x=np.zeros((1, 8), np.int32), y=np.zeros((1, 8), np.int32))
    return abstract(Config(model=model), arrays)


def random_variables(settings):
    """Returns the model's arrays with random numbers."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), abstract(settings))


@pytest.mark.parametrize(("model", "classes"), COUNTS)
def test_named_model_has_the_published_number_of_parameters(x64, model, classes):
    params = abstract_in_double_precision(model).params
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[model, classes]


@pytest.mark.parametrize("model", registry.MODELS)
def test_initial_parameters_are_float32_also_in_double_precision(x64, model):
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract_in_double_precision(model))} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("model", "shape", "first", "expected"),
    [
        ("resnet18", (28, 28, 1), "conv1", (7, 7, 3, 64)),
        ("vit_s16", (40, 30, 1), "patch_embed", (16 * 16 * 3, 384)),
        ("vit_s16", (40, 30, 3), "patch_embed", (16 * 16 * 3, 384)),
    ],
)
def test_grayscale_and_oblong_images_fit_models_of_three_channels_and_224_pixels(model, shape, first, expected):
    task = registry.make_task(Config(model=model), GREY._replace(x=np.zeros((6, *shape), np.uint8)))
    variables = jax.eval_shape(task.init, jax.random.key(0))
    assert variables.params[first]["kernel"].shape == expected
    batch = Batch(jax.ShapeDtypeStruct((2, *shape), np.uint8), jax.ShapeDtypeStruct((2,), np.int32))
    assert jax.eval_shape(task.predict, *variables, batch).shape == (2, 3)


def test_stem_and_norm_follow_the_settings(tiny):
    published, other = abstract(tiny), abstract(dataclasses.replace(tiny, stem="cifar", norm="group"))
    assert published.params["conv1"]["kernel"].shape == (7, 7, 3, 4) and published.stats
    assert other.params["conv1"]["kernel"].shape == (3, 3, 3, 4) and not other.stats


def test_run_starts_from_pretrained_weights_with_a_new_head(tiny, tmp_path):
    path, saved = tmp_path / "weights.safetensors", random_variables(tiny)
    pretrained.save(path, saved, "resnet18")
    settings = dataclasses.replace(tiny, pretrained=path, clients=2, join_ratio=1.0, cache_dir=tmp_path, seed=3)
    parts = ([[0], [1]], [[2], []], [[], [3]])
    run = simulation.simulation(settings, data=GREY, partition=parts)
    params, stats = run.state.variables
    head = jax.jit(lambda key: run.task.init(key).params["classifier"])(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, {**saved.params, "classifier": head})
    jax.tree.map(np.testing.assert_array_equal, stats, saved.stats)
    assert np.abs(head["kernel"] - saved.params["classifier"]["kernel"]).max() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stem": "cifar"}, r"conv1.weight is \[4, 3, 7, 7\], resnet18 needs \[4, 3, 3, 3\]"),
        ({"norm": "group"}, r"has a tensor bn1.running_mean, \[4\], that resnet18 lacks"),
    ],
)
def test_first_tensor_that_does_not_fit_is_named(tiny, tmp_path, changes, message):
    pretrained.save(tmp_path / "weights.safetensors", random_variables(tiny), "resnet18")
    settings = dataclasses.replace(tiny, pretrained=tmp_path / "weights.safetensors", **changes)
    with pytest.raises(UsageError, match=message):
        registry.make_variables(settings, registry.make_task(settings, GREY).init)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stem": "cifar"}, "--stem is not used by --model mlp; it is used by ResNets"),
        ({"model": "vit_s16", "norm": "group"}, "--norm is not used by --model vit_s16; it is used by ResNets"),
        ({"model": "resnet18", "stem": "7x7"}, "unknown stem '7x7'; allowed: imagenet, cifar"),
        ({"model": "resnet18", "norm": "layer"}, "unknown norm"),
        ({"normalise": "imagnet"}, "did you mean 'imagenet'"),
        ({"augment": "flips"}, "did you mean 'flip'"),
    ],
)
def test_option_that_a_model_lacks_is_refused_in_one_line(settings, message):
    with pytest.raises(UsageError, match=message) as error:
        config.check(config.apply(Config(), settings, "test"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04"])
def test_file_without_weights_is_refused_in_one_line_by_the_command(capfd, tmp_path, content):
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)
    flags = [
        "--model",
        "resnet18",
        "--pretrained",
        str(path),
        "--cache-dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    assert sim.main(flags) == 2
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == 1 and "weights.safetensors" in errors[0]


# --- the line about pretrained weights in the shipped configs


CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
CONFIGS = [path for path in CONFIGS if config.read_toml(path)["dataset"] not in BUILT_IN]  # of which a run would start


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def uncommented(request, tmp_path):
    """A shipped config with its line about pretrained weights uncommented, and its model."""
    path = tmp_path / request.param.name
    path.write_text(request.param.read_text().replace("\n# pretrained =", "\npretrained ="))
    return path, config.read_toml(request.param)["model"]


def test_every_config_whose_model_has_pretrained_weights_has_a_line_for_them(uncommented):
    path, model = uncommented
    parsed = sim.parse(["--config", str(path)])
    has_weights = model.startswith(("resnet", "vit"))
    assert parsed.pretrained == (Path(f"{model}.safetensors") if has_weights else None) and parsed.model == model


def test_missing_weights_are_reported_before_anything_is_read(uncommented, tmp_path, capsys, monkeypatch):
    path, model = uncommented
    monkeypatch.chdir(tmp_path)
    assert sim.main(["--config", str(path), "--cache-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    if model.startswith(("resnet", "vit")):  # even before the data, which are missing too
        assert f"{model}.safetensors: no such file in {tmp_path};" in error
        assert "docs/how_to/pretrained_weights.md" in error
    assert error.count("\n") == 1 and not (tmp_path / "out").exists()
    assert (Path(__file__).parents[2] / "docs/how_to/pretrained_weights.md").exists()


def test_relative_path_in_a_config_starts_from_the_working_directory(tiny, tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.toml").write_text('model = "resnet18"\npretrained = "weights.safetensors"')
    saved = random_variables(tiny)
    pretrained.save(tmp_path / "weights.safetensors", saved, "resnet18")
    monkeypatch.chdir(tmp_path)
    path = sim.parse(["--config", "configs/mine.toml"]).pretrained
    variables = registry.make_variables(dataclasses.replace(tiny, pretrained=path), registry.make_task(tiny, GREY).init)
    jax.tree.map(np.testing.assert_array_equal, variables.stats, saved.stats)
