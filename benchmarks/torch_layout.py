"""Converts LeNet5's parameters between torch's names and layout, which `benchmarks.parity` reads, and ours.

Convolution kernels are OIHW in torch and HWIO in ours, dense kernels [out, in] in torch and [in, out] in ours. The
image before the first dense layer is flattened channel-major in torch and pixel-major in ours.
"""

from __future__ import annotations

import jax
import numpy as np

from fedvg_jax.core.types import Variables

_CHANNELS = 16
"""Channels of the image that LeNet5 flattens."""

_NAMES = {
    ("params", "kernel"): "weight",
    ("params", "scale"): "weight",
    ("params", "bias"): "bias",
    ("batch_stats", "mean"): "running_mean",
    ("batch_stats", "var"): "running_var",
}


def to_torch(variables: Variables) -> dict[str, np.ndarray]:
    """Returns our variables in torch's layout, by torch's names."""
    ours = {"params": variables.params, "batch_stats": variables.stats}
    leaves = jax.tree.leaves_with_path(jax.device_get(ours))
    return {
        n: array_to_torch(np.asarray(leaf), _channels(n))
        for n, leaf in ((_name(p), leaf) for p, leaf in leaves)
    }


def from_torch(tensors: dict[str, np.ndarray], like: Variables) -> Variables:
    """Returns torch's tensors in the structure and layout of `like`."""
    ours = {"params": like.params, "batch_stats": like.stats}
    values = jax.tree.map_with_path(
        lambda path, leaf: _to_ours(_name(path), tensors[_name(path)], leaf.shape), ours
    )
    return Variables(values["params"], values["batch_stats"])


def by_name(values: dict[str, float], like: Variables) -> Variables:
    """Returns one number per tensor, given by torch's names, in the structure of `like`."""
    ours = {"params": like.params, "batch_stats": like.stats}
    scalars = jax.tree.map_with_path(
        lambda path, leaf: np.asarray(values[_name(path)], leaf.dtype), ours
    )
    return Variables(scalars["params"], scalars["batch_stats"])


def is_trained(name: str) -> bool:
    """Returns whether a tensor is a parameter, not a running statistic."""
    return "running_" not in name


def _name(path) -> str:
    collection, layer, tensor = (key.key for key in path)
    prefix = "" if layer == "classifier" else "base."
    return f"{prefix}{layer}.{_NAMES[collection, tensor]}"


def _channels(name: str) -> int | None:
    return _CHANNELS if name == "base.fc1.weight" else None


def array_to_torch(x: np.ndarray, channels: int | None = None) -> np.ndarray:
    """Returns our array in torch's layout.

    Args:
        x: kernel, bias or statistic.
        channels: of the flattened image that a dense kernel multiplies; None for others.
    """
    if x.ndim == 4:
        return x.transpose(3, 2, 0, 1)
    if channels:
        side = round((len(x) // channels) ** 0.5)
        return x.reshape(side, side, channels, -1).transpose(3, 2, 0, 1).reshape(x.shape[1], -1)
    return x.T if x.ndim == 2 else x


def array_from_torch(x: np.ndarray, channels: int | None = None) -> np.ndarray:
    """Returns torch's array in our layout; the inverse of `array_to_torch`."""
    if x.ndim == 4:
        return x.transpose(2, 3, 1, 0)
    if channels:
        side = round((x.shape[1] // channels) ** 0.5)
        return x.reshape(-1, channels, side, side).transpose(2, 3, 1, 0).reshape(-1, len(x))
    return x.T if x.ndim == 2 else x


def _to_ours(name: str, x: np.ndarray, shape) -> np.ndarray:
    x = array_from_torch(x, _channels(name))
    assert x.shape == shape, f"{name}: {x.shape} in torch's file, {shape} in our model"
    return np.ascontiguousarray(x)
