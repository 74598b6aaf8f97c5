"""Reads and writes weights as `.safetensors` files with torchvision's or timm's names; never pickle.

timm's models are published as such files. With torch and safetensors installed, this line exports a torchvision `.pth`:

    python -c "import sys, torch, safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in
    torch.load(sys.argv[1], weights_only=True).items()}, sys.argv[2])" resnet18-f37072fd.pth resnet18.safetensors

"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.data.arrays import reading
from fedvg_jax.host import files
from fedvg_jax.models import adapters

if TYPE_CHECKING:
    from fedvg_jax.data.scaling import Columns

Tensors = dict[str, Any]
"""name or path -> array"""

Renames = list[tuple[str, str]]
"""patterns of our paths, with what they become in files"""

_LEAVES = [("/(kernel|scale)$", "/weight"), ("/(mean|var)$", r"/running_\1")]

_RESNET = [("^classifier/", "fc/"), (r"_(\d+)/", r"/\1/")]

_EFFICIENTNET = [("^classifier/", "fc/"), (r"^block_(\d+)/", r"blocks/\1/_"), ("^", "_")]

_TIMM = [
    ("^classifier/", "head/"),
    ("^patch_embed/", "patch_embed/proj/"),
    (r"^block_(\d+)/(qkv|proj)/", r"blocks/\1/attn/\2/"),
    (r"^block_(\d+)/(fc\d)/", r"blocks/\1/mlp/\2/"),
    (r"^block_(\d+)/", r"blocks/\1/"),
]

_TORCHVISION = [
    ("^classifier/", "heads/head/"),
    ("^cls_token", "class_token"),
    ("^pos_embed", "encoder/pos_embedding"),
    ("^norm/", "encoder/ln/"),
    ("^patch_embed/", "conv_proj/"),
    ("^block_", "encoder/layers/encoder_layer_"),
    (r"/norm(\d)/", r"/ln_\1/"),
    ("/qkv/", "/self_attention/in_proj_"),
    ("/proj/", "/self_attention/out_proj/"),
    ("/fc1/", "/mlp/0/"),
    ("/fc2/", "/mlp/3/"),
]

COLUMNS = "fedvg_jax.columns"
"""Name of the columns' means and deviations in a file's metadata."""

HEAD = "classifier"
"""Name of the last layer in every model."""

_STATISTICS = re.compile(r".*\.(num_batches_tracked|running_mean|running_var)$")
"""What a file may have beyond a model: BatchNorm's counters, and statistics that GroupNorm does not have."""

_REMEDY = "use timm's model.safetensors, or export a .pth: docs/how_to/pretrained_weights.md"

_FILE_HEAD = re.compile(rf"(_?fc|head|heads|{HEAD})\.")


def load(path: Path, variables: Variables, architecture: str, *, head: bool = False) -> Variables:
    """Returns `variables` with the tensors of a file.

    Kernels are converted from OIHW to HWIO or transposed. Fused queries, keys and values are read, and BatchNorm's
    running statistics, which a model with GroupNorm leaves out. Position embeddings are not resampled.

    Args:
        path: a safetensors file.
        variables: the model's variables, for structure, shapes and dtypes.
        architecture: name of the model. A ViT's file has timm's or torchvision's names. The file of a model that is
            neither a ResNet nor a ViT has the names that `save` writes.
        head: whether to read the head, `classifier`, too, e.g. from a file of `save`. Otherwise the head of `variables`
            stays, and the head in the file is ignored.

    Raises:
        UsageError: a tensor is missing, has another shape, or is not part of this model; the first one is named.
    """
    tensors = {_current(name): tensor for name, tensor in read(path).items()}
    renames = _renames(architecture, tensors)
    leaves = _by_path(variables)
    names = {
        ours: _name(ours, renames) for ours in leaves if head or not ours.startswith(f"{HEAD}/")
    }
    expected = {
        name: _to_torch(ours, np.broadcast_to(0, leaves[ours].shape)).shape
        for ours, name in names.items()
    }
    got = {
        name: tensor.shape
        for name, tensor in tensors.items()
        if name in expected
        or not (_STATISTICS.match(name) or (_FILE_HEAD.match(name) and not head))
    }
    for name in expected | got:
        if got.get(name) != expected.get(name):
            raise UsageError(
                f"{path}: tensor {name} has shape {got.get(name)}, and {architecture} takes {expected.get(name)};"
                " give a file of this model"
            )
    filled = {ours: _from_torch(ours, tensors[names[ours]], leaves[ours]) for ours in names}
    return jax.tree.structure(variables).unflatten((leaves | filled).values())


def save(
    path: Path, variables: Variables, architecture: str | None, columns: Columns | None = None
) -> None:
    """Writes a model with its head; `load(path, variables, architecture, head=True)` returns the same bits.

    Low-rank adapters are added to their kernels.

    ResNets and `vit_b16` get torchvision's names and shapes, other ViTs timm's, so torch's `load_state_dict` accepts
    them. Tensors of other models are named by their paths, with kernels OIHW or [out, in]. An existing file is replaced
    atomically.

    Args:
        path: the file to write.
        variables: the model's variables.
        architecture: name of the model; None for any other one: its tensors are written as they are, by path.
        columns: by which the rows are scaled that the model takes, written to the file's metadata; None for none.

    Raises:
        UsageError: the file cannot be written.
    """
    metadata = {COLUMNS: json.dumps(columns.as_json())} if columns else {}
    if architecture is None:
        return write(path, jax.device_get(tree.by_path(variables)), metadata)
    leaves = _by_path(jax.device_get(adapters.merged(variables)))
    renames = _renames(architecture, {"class_token"} if architecture == "vit_b16" else ())
    tensors = {_name(ours, renames): _to_torch(ours, leaf) for ours, leaf in leaves.items()}
    for name in [name for name in tensors if name.endswith("running_mean")]:
        tensors[name.replace("running_mean", "num_batches_tracked")] = np.zeros((), np.int64)
    write(path, tensors, metadata)


def write(path: Path, tensors: Tensors, metadata: Mapping[str, str] = {}) -> None:
    """Writes a safetensors file, which is on the disk when this returns; a link's target is replaced.

    Args:
        path: the file to write.
        tensors: arrays by name.
        metadata: texts by name.

    Raises:
        UsageError: the file cannot be written, or `path` is not a regular file.
    """
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    content = safetensors.numpy.save(contiguous, {"format": "pt", **metadata})
    with files.writing(path, "--export"):
        files.replace(files.export_target(path), content)


def read(path: Path) -> Tensors:
    """Returns the tensors of a safetensors file by name.

    Raises:
        UsageError: there is no such file, or it cannot be read, has another format, or is truncated.
    """
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  a file is no mapping


def read_columns(path: Path) -> Columns | None:
    """Returns what encodes the tables that the model of a file takes; None for arrays.

    Raises:
        UsageError: as `read`.
    """
    with _opened(path) as file:
        stored = (file.metadata() or {}).get(COLUMNS)
    if stored is None:
        return None
    from fedvg_jax.data import scaling

    return scaling.from_json(files.parse_json(stored.encode(), COLUMNS), path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise UsageError(
            f"{path}: no such file or run; name a .safetensors file, or the folder of a run"
        )
    with (
        reading(path, "a complete safetensors file", _REMEDY),
        safetensors.safe_open(path, framework="np") as file,
    ):
        yield file


def _current(name: str) -> str:
    """Returns the current name of a dense layer of torchvision's published ViTs, and any other name unchanged."""
    return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")


def _renames(architecture: str, names: Container[str]) -> Renames:
    """Returns patterns of our paths with what they become in files; [] for a model without published names.

    Args:
        architecture: name of the model.
        names: of the tensors of a file; torchvision's ViT has a class_token.
    """
    vit = _TORCHVISION if "class_token" in names else _TIMM
    tables = {"resnet": _RESNET, "efficientnet": _EFFICIENTNET, "vit": vit}
    return next((table for family, table in tables.items() if architecture.startswith(family)), [])


def _name(path: str, renames: Renames) -> str:
    """Returns the tensor's name for a path, e.g. blocks.3.norm1.weight for block_3/norm1/scale."""
    for pattern, new in (*_LEAVES, *renames):
        path = re.sub(pattern, new, path)
    return path.replace("/", ".")


def _by_path(variables: Variables) -> Tensors:
    """Returns parameters and statistics by path, in leaf order."""
    return tree.by_path(variables.params) | tree.by_path(variables.stats)


def _to_torch(path: str, leaf: np.ndarray) -> np.ndarray:
    """Returns a kernel as OIHW of HWIO, or as [out, in] of [in, out]; other tensors keep their axes."""
    if path == "patch_embed/kernel":  # [h w 3, o], which is a convolution in torch
        side = math.isqrt(len(leaf) // 3)
        leaf = leaf.reshape(side, side, 3, -1)
    return np.moveaxis(leaf, (-1, -2), (0, 1)) if path.endswith("kernel") else leaf


def _from_torch(path: str, array: np.ndarray, leaf: Array) -> Array:
    """Returns a copy in the shape and dtype of `leaf`: the file may change, and the engine donates buffers."""
    array = np.moveaxis(array, (0, 1), (-1, -2)) if path.endswith("kernel") else array
    return jnp.array(array.reshape(leaf.shape), leaf.dtype, copy=True)
