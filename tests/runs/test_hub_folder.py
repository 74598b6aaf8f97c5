"""Exports of a run as a folder of the Hugging Face hub, and weights that are read from such folders."""

import json
import shutil

import jax
import numpy as np
import pytest
from files import usage_error

import fedvg_jax as fv
from fedvg_jax import data
from fedvg_jax.config import Config
from fedvg_jax.models import pretrained
from fedvg_jax.runs import hub_folder, simulation

SMALL = Config(clients=4, join_ratio=0.5, alpha=10.0, rounds=1, local_epochs=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run's export, its simulation and its history, made without training."""
    root = tmp_path_factory.mktemp("hub")
    sim = simulation.simulation(SMALL.__class__(**{**vars(SMALL), "cache_dir": root / "cache"}))
    summary = {"test_accuracy_final": 0.5, "test_loss_final": 1.25, "versions": {"jax": "1"}, "stopped_by": None}
    history = fv.History([{"round": 1}], summary, sim.state.variables, None, None, sim.config)
    hub_folder.export(root / "model", sim, history)
    return root / "model", sim, history


def test_export_is_read_again_bit_for_bit(exported):
    folder, sim, history = exported
    template = jax.eval_shape(sim.task.init, jax.random.key(0))
    back = pretrained.load(folder, template, "mlp", head=True)
    jax.tree.map(np.testing.assert_array_equal, back, history.variables)
    settings = SMALL.__class__(**{**vars(SMALL), "pretrained": folder, "seed": 5})
    started = simulation.make_variables(settings, sim.task.init).params
    for name, tensors in history.variables.params.items():
        same = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (tensors, started[name])), strict=True)]
        assert all(same) != (name == "classifier")


def test_description_has_the_model_and_no_path_of_this_machine(exported):
    folder, sim, _ = exported
    content = json.loads((folder / "config.json").read_text())
    assert (content["architecture"], content["num_classes"], content["input_shape"]) == ("mlp", 10, [8, 8, 1])
    assert content["class_names"] == list(sim.arrays.class_names) and content["settings"]["clients"] == 4
    text = (folder / "config.json").read_text() + (folder / "README.md").read_text()
    assert str(folder.parent) not in text and "cache_dir" not in text and "fedprox" not in text


def test_folder_of_a_data_set_is_named_without_its_place():
    settings = hub_folder._settings(Config(dataset="hf:/home/somebody/writers", data_dir="/home/x", seed=3))
    assert settings["dataset"] == "hf:writers" and "data_dir" not in settings and settings["seed"] == 3


def test_card_has_results_and_a_header_that_is_yaml(exported):
    yaml = pytest.importorskip("yaml")
    text = (exported[0] / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    parsed = yaml.safe_load(header)
    assert parsed["library_name"] == "fedvg_jax" and "federated-learning" in parsed["tags"]
    assert parsed["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.5
    assert "| test accuracy, final round | 50.00% |" in body and "| version of jax | 1 |" in body


def test_card_and_settings_name_a_weighting_from_python(exported):
    _, sim, history = exported
    given = sim._replace(given=frozenset({"weighting"}))
    text = hub_folder.card(given, history)
    assert "# mlp-digits-fedavg, own weighting\n" in text and "weights own weighting." in text and "fedvg |" not in text
    content = hub_folder.description(sim.config, sim.arrays, given.given)
    assert content["settings"]["weighting"] == "own weighting" and content["settings"]["algorithm"] == "fedavg"


def test_names_from_data_are_escaped_in_the_card(exported):
    _, sim, history = exported
    named = sim._replace(arrays=sim.arrays._replace(name="a|b<script>\n---\n# c"))
    text = hub_folder.card(named, history)
    assert "<script>" not in text.split("---\n", 2)[2] and "a\\|b&lt;script&gt; --- \\# c" in text


def test_export_overwrites_an_earlier_export_and_nothing_else(exported, tmp_path):
    folder, sim, history = exported
    copy = shutil.copytree(folder, tmp_path / "model")
    hub_folder.check_target(copy)
    hub_folder.export(copy, sim, history)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("mine")
    with usage_error("other", "holds other files"):
        hub_folder.check_target(tmp_path / "other")
    with usage_error("no such folder"):
        hub_folder.check_target(tmp_path / "none" / "model")
    hub_folder.check_target(tmp_path / "model.safetensors")
    assert hub_folder.is_folder(tmp_path / "new") and not hub_folder.is_folder(tmp_path / "new.safetensors")


def snapshot(tmp_path, tensors, **description):
    folder = tmp_path / "models--timm--x" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    pretrained.write(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(description))
    return folder


TENSORS = {"a.weight": np.ones(2, np.float32)}


def test_folder_of_the_hubs_cache_is_that_of_its_branch_main(tmp_path):
    folder = snapshot(tmp_path, TENSORS)
    root = folder.parents[1]
    assert pretrained.find(root) == folder / "model.safetensors" == pretrained.find(folder)
    (folder.parent / "ffff").mkdir()
    with usage_error("2 versions", "name the folder of one"):
        pretrained.find(root)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0a1b")
    assert pretrained.read(root).keys() == {"a.weight"}


@pytest.mark.parametrize(
    ("architecture", "model", "parts"),
    [
        ("resnet50", "resnet18", ["holds a resnet50", "use --model resnet50"]),
        ("vit_base_patch16_224", "vit_s16", ["holds a vit_b16", "use --model vit_b16"]),
        ("vit_small_patch16_224.augreg", "vit_s16", ["has no tensor"]),
        (None, "resnet18", ["has no tensor"]),
    ],
)
def test_folder_of_another_model_is_refused_by_its_description(tmp_path, exported, architecture, model, parts):
    folder = snapshot(tmp_path, TENSORS, **({"architecture": architecture} if architecture else {}))
    with usage_error(str(folder), *parts):
        pretrained.load(folder, exported[2].variables, model)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([], ["holds no .safetensors file"]),
        (["a.safetensors", "b.safetensors"], ["a.safetensors, b.safetensors"]),
        (["model.safetensors.index.json"], ["in several files"]),
    ],
)
def test_folder_without_one_file_of_weights_is_refused(tmp_path, names, parts):
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    with usage_error(str(tmp_path), *parts):
        pretrained.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, "--model mlp"),
        ({"model": "resnet18", "stem": "cifar", "norm": "group"}, "--model resnet18 --stem cifar --norm group"),
        ({"dataset": "hf:/home/my pictures", "model": "cnn", "image_size": 32},
         "--model cnn --dataset 'hf:my pictures' --image-size 32"),
    ],
)  # fmt: skip
def test_command_of_a_card_builds_the_exported_model(changes, options):
    settings = hub_folder._settings(Config(**changes))
    assert hub_folder._model_options(settings) == options
    assert "--dataset DATA" in hub_folder._model_options(settings | {"dataset": "own data"})


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        ("literature", "text-generation", "Inputs are sequences of 64 numbers of characters"),
        ("iris", "tabular-classification", "Inputs are rows of 4 numbers"),
    ],
)
def test_card_names_what_a_model_of_no_images_takes(exported, dataset, kind, message):
    _, sim, history = exported
    text = hub_folder.card(sim._replace(arrays=data.load(dataset)), history)
    assert f'"{kind}"' in text and message in text and "mages" not in text.split("## Use")[1]
