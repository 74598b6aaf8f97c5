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
    ("stats", "mean"): "running_mean",
    ("stats", "var"): "running_var",
}


def to_torch(variables: Variables) -> dict[str, np.ndarray]:
    """Returns our variables in torch's layout, by torch's names."""
    leaves = {_name(path): x for path, x in jax.tree.leaves_with_path(jax.device_get(variables))}
    return {name: array_to_torch(np.asarray(x), _channels(name)) for name, x in leaves.items()}


def from_torch(tensors: dict[str, np.ndarray], like: Variables) -> Variables:
    """Returns torch's tensors in the structure and layout of `like`."""

    def to_ours(path, _) -> np.ndarray:
        name = _name(path)
        return np.ascontiguousarray(array_from_torch(tensors[name], _channels(name)))

    return jax.tree.map_with_path(to_ours, like)


def by_name(values: dict[str, float], like: Variables) -> Variables:
    """Returns one number per tensor, by torch's names, in the structure of `like`."""
    return jax.tree.map_with_path(lambda path, x: np.asarray(values[_name(path)], x.dtype), like)


def is_trained(name: str) -> bool:
    """Returns whether a tensor is a parameter, not a running statistic."""
    return "running_" not in name


def _name(path) -> str:
    collection, layer, tensor = path
    prefix = "" if layer.key == "classifier" else "base."
    return f"{prefix}{layer.key}.{_NAMES[collection.name, tensor.key]}"


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
