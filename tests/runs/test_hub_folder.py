"""Exports of a run as a folder of the Hugging Face hub, and weights that are read from such folders."""

import json
import shutil

import jax
import numpy as np
import pytest
from files import usage_error

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.models import pretrained
from fedvg_jax.runs import hub_folder, registry, simulation

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
    started = registry.make_variables(settings, sim.task.init).params
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


def test_card_has_the_result_and_at_most_ten_lines(exported):
    yaml = pytest.importorskip("yaml")
    text = (exported[0] / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "fedvg_jax" and "50.00%" in body
    assert len(text.splitlines()) <= 10


def test_card_and_settings_name_a_weighting_from_python(exported):
    _, sim, history = exported
    content = hub_folder.description(sim._replace(given=frozenset({"weighting"})), history)
    assert content["settings"]["weighting"] == "own weighting" and content["settings"]["algorithm"] == "fedavg"
    assert "weights own weighting." in hub_folder.card(content, "digits", history)


def test_name_of_a_data_set_is_one_line_of_code_in_the_card(exported):
    _, sim, history = exported
    text = hub_folder.card(hub_folder.description(sim, history), "a`|b<script>\n---\n# c", history)
    assert "`a'|b<script> --- # c`" in text


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
