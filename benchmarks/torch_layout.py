"""Parameters in torch's names and layout, as recorded rounds hold them, and ours: LeNet5.

Convolution kernels are OIHW there and HWIO here, dense kernels [out, in] there and [in, out] here; the first dense
layer reads the image flattened channel by channel there and pixel by pixel here.
"""

from __future__ import annotations

import jax
import numpy as np

from fedvg_jax.core.types import Variables

_CHANNELS = 16  # of the image that LeNet5 flattens

_NAMES = {
    ("params", "kernel"): "weight",
    ("params", "scale"): "weight",
    ("params", "bias"): "bias",
    ("batch_stats", "mean"): "running_mean",
    ("batch_stats", "var"): "running_var",
}


def to_torch(variables: Variables) -> dict[str, np.ndarray]:
    """Our variables by torch's names."""
    ours = {"params": variables.params, "batch_stats": variables.stats}
    leaves = jax.tree.leaves_with_path(jax.device_get(ours))
    return {_name(path): _to_torch(_name(path), np.asarray(leaf)) for path, leaf in leaves}


def from_torch(tensors: dict[str, np.ndarray], like: Variables) -> Variables:
    """Torch's tensors in the structure of `like`."""
    ours = {"params": like.params, "batch_stats": like.stats}
    found = jax.tree.map_with_path(lambda path, leaf: _to_ours(_name(path), tensors[_name(path)], leaf.shape), ours)
    return Variables(found["params"], found["batch_stats"])


def by_name(values: dict[str, float], like: Variables) -> Variables:
    """One number per tensor in the structure of `like`."""
    ours = {"params": like.params, "batch_stats": like.stats}
    found = jax.tree.map_with_path(lambda path, leaf: np.asarray(values[_name(path)], leaf.dtype), ours)
    return Variables(found["params"], found["batch_stats"])


def is_trained(name: str) -> bool:
    """Whether a tensor has a gradient."""
    return "running_" not in name


def _name(path) -> str:
    collection, layer, tensor = (key.key for key in path)
    prefix = "" if layer == "classifier" else "base."
    return f"{prefix}{layer}.{_NAMES[collection, tensor]}"


def _to_torch(name: str, x: np.ndarray) -> np.ndarray:
    if x.ndim == 4:
        return x.transpose(3, 2, 0, 1)
    if name == "base.fc1.weight":
        side = round((len(x) // _CHANNELS) ** 0.5)
        return x.reshape(side, side, _CHANNELS, -1).transpose(3, 2, 0, 1).reshape(x.shape[1], -1)
    return x.T


def _to_ours(name: str, x: np.ndarray, shape) -> np.ndarray:
    if x.ndim == 4:
        x = x.transpose(2, 3, 1, 0)
    elif name == "base.fc1.weight":
        side = round((x.shape[1] // _CHANNELS) ** 0.5)
        x = x.reshape(-1, _CHANNELS, side, side).transpose(2, 3, 1, 0).reshape(-1, len(x))
    else:
        x = x.T
    assert x.shape == shape, f"{name}: {x.shape} there, {shape} here"
    return np.ascontiguousarray(x)
