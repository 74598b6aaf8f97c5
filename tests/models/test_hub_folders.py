"""Weights in folders of the Hugging Face hub."""

import json

import numpy as np
import pytest
from files import usage_error

from fedvg_jax.models import pretrained


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
