"""Weights from and to a `.safetensors` file with torchvision's or timm's names; never pickle.

timm's models are published as such files. A torchvision `.pth` is exported where torch and safetensors are installed by

    python -c "import sys, torch, safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in
    torch.load(sys.argv[1], weights_only=True).items()}, sys.argv[2])" resnet18-f37072fd.pth resnet18.safetensors

(one line). Such a file is 8 bytes with the length of a JSON header, the header, and the tensors.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from jax import Array

from fedvg_jax.core import files, tree
from fedvg_jax.core.types import UsageError, Variables

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "I64": np.int64}

_LEAVES = [("/(kernel|scale)$", "/weight"), ("/(mean|var)$", r"/running_\1")]

_RESNET = [(r"_(\d+)/", r"/\1/")]

_TIMM = [
    ("^patch_embed/", "patch_embed/proj/"),
    (r"^block_(\d+)/(qkv|proj)/", r"blocks/\1/attn/\2/"),
    (r"^block_(\d+)/(fc\d)/", r"blocks/\1/mlp/\2/"),
    (r"^block_(\d+)/", r"blocks/\1/"),
]

_TORCHVISION = [
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

HEAD = "classifier"
"""What every model calls its last layer."""

_COUNTER = re.compile(r".*\.num_batches_tracked$")
"""The counters of BatchNorms, which nothing uses."""

_MAKE = (
    "timm's model.safetensors will do; torchvision's .pth is exported by one line:"
    " docs/how_to/pretrained_weights.md, or fedvg_jax/models/pretrained.py"
)

_ITS_HEAD = re.compile(r"(fc|head|heads)\.")


def load(path: Path, variables: Variables, architecture: str, *, head: bool = False) -> Variables:
    """`variables` with the tensors of a file.

    Kernels OIHW -> HWIO and transposed, BatchNorm's running statistics, fused queries, keys and values; position
    embeddings are not resampled.

    Args:
        variables: the model's.
        architecture: the model's name, "resnet.." or "vit.."; a ViT's file may have timm's or torchvision's names.
        head: whether the head, `classifier`, is read too, as from a file of `save`; any model then will do. Otherwise
            it stays as it is, and the file's own is left out.

    Raises:
        UsageError: naming the first tensor that is missing, has another shape, or is not of this model.
    """
    found = read(path)
    renames = _head_names(architecture, found) if head else _renames(architecture, found)
    leaves = dict(zip(_paths(variables), jax.tree.leaves(variables), strict=True))
    names = {ours: _name(ours, renames) for ours in leaves if head or not ours.startswith(f"{HEAD}/")}
    for ours, name in names.items():
        shape = _torch_shape(ours, leaves[ours].shape)
        if name not in found:
            raise UsageError(f"{path} has no tensor {name}, {list(shape)} in {architecture}; is it of another model?")
        if found[name].shape != shape:
            raise UsageError(f"{path}: tensor {name} is {list(found[name].shape)}, {architecture} needs {list(shape)}")
    for name, tensor in found.items():
        if name not in names.values() and not (_COUNTER.match(name) or (_ITS_HEAD.match(name) and not head)):
            raise UsageError(f"{path} has a tensor {name}, {list(tensor.shape)}, which {architecture} has not")
    filled = [_from_torch(ours, found[names[ours]], leaf) if ours in names else leaf for ours, leaf in leaves.items()]
    return jax.tree.structure(variables).unflatten(filled)


def save(path: Path, variables: Variables, architecture: str) -> None:
    """Writes a model, head and all, so that `load(path, variables, architecture, head=True)` has the same bits.

    A ResNet's tensors have torchvision's names and shapes, `vit_b16`'s torchvision's, other ViTs' timm's: torch's
    `load_state_dict` takes them. Those of other models have their paths' names, kernels OIHW and [out, in]. A file that
    is there is replaced, whole or not at all.

    Raises:
        UsageError: if the file cannot be written, or two tensors would have one name.
    """
    renames = _head_names(architecture, {"class_token": None} if architecture == "vit_b16" else {})
    leaves = zip(_paths(variables), jax.device_get(jax.tree.leaves(variables)), strict=True)
    pairs = [(_name(ours, renames), _to_torch(ours, leaf)) for ours, leaf in leaves]
    tensors = dict(pairs)
    if len(tensors) < len(pairs):
        raise UsageError(f"cannot write {path}: two tensors of {architecture} would have one name")
    counters = [name.replace("running_mean", "num_batches_tracked") for name in tensors if "running_mean" in name]
    write(path, tensors | dict.fromkeys(counters, np.zeros((), np.int64)))


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file, on the disk when this returns. Of a link, the file it points to is replaced.

    Raises:
        UsageError: if it cannot be written, or something else than a regular file is there.
    """
    code = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": code[tensor.dtype], "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    body = (np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())
    pieces = itertools.chain([len(text).to_bytes(8, "little") + text], body)
    try:
        files.replace_bytes(files.export_target(path), pieces)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file by name.

    Raises:
        UsageError: if it cannot be read, is of another format, holds dtypes no model has, or is cut short.
    """
    if not path.exists():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise UsageError(f"cannot read {path}: no such file{where}; {_MAKE}")
    if not path.is_file():
        raise UsageError(f"cannot read {path}: it is no file; {_MAKE}")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = list(file.keys())
            for name in names:
                dtype = file.get_slice(name).get_dtype()
                if dtype not in _DTYPES:
                    raise UsageError(f"{path}: tensor {name} has dtype {dtype}, allowed are {', '.join(_DTYPES)}")
            return {_modern(name): file.get_tensor(name) for name in names}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {files.reason(error)}") from None
    except (safetensors.SafetensorError, ValueError) as error:
        raise UsageError(f"{path} is not a whole safetensors file: {files.reason(error)}; {_MAKE}") from None


def _modern(name: str) -> str:
    """torchvision's published ViTs were saved when their dense layers had these names."""
    return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")


def _renames(architecture: str, found: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    if architecture.startswith("resnet"):
        return _RESNET
    if architecture.startswith("vit"):
        return _TORCHVISION if "class_token" in found else _TIMM
    raise UsageError(f"no pretrained weights exist for model {architecture}; they do for ResNets and ViTs")


def _head_names(architecture: str, found: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    """With the head's name; a model without an architecture map keeps its own names."""
    if not architecture.startswith(("resnet", "vit")):
        return []
    renames = _renames(architecture, found)
    head = "fc/" if renames is _RESNET else "heads/head/" if renames is _TORCHVISION else "head/"
    return [*renames, (f"^{HEAD}/", head)]


def _name(path: str, renames: list[tuple[str, str]]) -> str:
    """block_3/norm1/scale -> blocks.3.norm1.weight"""
    for pattern, new in (*_LEAVES, *renames):
        path = re.sub(pattern, new, path)
    return path.replace("/", ".")


def _paths(variables: Variables) -> list[str]:
    return tree.paths(variables.params) + tree.paths(variables.stats)


def _torch_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    shape = _spatial(path, shape)
    return tuple(shape[i] for i in _axes(path, len(shape)))


def _to_torch(path: str, leaf: np.ndarray) -> np.ndarray:
    array = leaf.reshape(_spatial(path, leaf.shape))
    return array.transpose(_axes(path, array.ndim))


def _from_torch(path: str, array: np.ndarray, leaf: Array) -> Array:
    """In the shape and dtype of `leaf`. A copy: the file may change, and the engine donates its buffers."""
    array = array.transpose(np.argsort(_axes(path, array.ndim)))
    return jnp.array(array.reshape(leaf.shape), leaf.dtype, copy=True)


def _spatial(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A patch embedding's [h w 3, o] is torch's convolution, here [h, w, 3, o]."""
    side = math.isqrt(shape[0] // 3) if path == "patch_embed/kernel" else 0
    return (side, side, 3, shape[1]) if side else shape


def _axes(path: str, ndim: int) -> tuple[int, ...]:
    """HWIO -> OIHW, [in, out] -> [out, in]; what is no kernel stays."""
    return {4: (3, 2, 0, 1), 2: (1, 0)}.get(ndim, tuple(range(ndim))) if path.endswith("kernel") else tuple(range(ndim))
