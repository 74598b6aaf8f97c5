"""The networks of `cases` in PyTorch, as functions of named tensors; conversion of arrays to torch's layout.

Names are our paths, e.g. "conv1/kernel"; convolution kernels are OIHW and dense weights [out, in], as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import torch_layout

Tensors = dict[str, Tensor]


class Groups(NamedTuple):
    """Minibatches that go through a network as one batch; BatchNorm uses the statistics of each minibatch."""

    count: int = 1
    is_interleaved: bool = False
    """whether row b count + g is row b of minibatch g, which needs no copy of contiguous images [N, C, H, W]; otherwise
    the minibatches are concatenated"""


ONE = Groups()

FLATTENED = {"lenet5": 16, "cnn": 64, "pfl_cnn": 64}
"""Channels of the image that is flattened before fc1: channel-major in torch, pixel-major in ours."""

LORA_SCALE = 8
"""s of adapters."""

PATCH, HEADS, SIZE = 16, 6, 224
"""Patch size, attention heads and image size of ViT-S/16."""


def to_torch(model: str, name: str, x: np.ndarray) -> Tensor:
    """Returns our array in torch's layout."""
    if name == "patch_embed/kernel":
        x = x.reshape(PATCH, PATCH, -1, x.shape[1])
    return torch.tensor(
        np.ascontiguousarray(torch_layout.array_to_torch(x, _channels(model, name)))
    )


def from_torch(model: str, name: str, tensor: Tensor) -> np.ndarray:
    """Returns torch's tensor in our layout; the inverse of `to_torch`."""
    x = torch_layout.array_from_torch(tensor.detach().numpy(), _channels(model, name))
    return x.reshape(-1, x.shape[-1]) if name == "patch_embed/kernel" else x


def as_arrays(model: str, kind: str, params: Tensors) -> dict[str, np.ndarray]:
    """Returns a model's parameters in our layout, as "kind/params/NAME"."""
    return {f"{kind}/params/{name}": from_torch(model, name, p) for name, p in params.items()}


def stacked(models: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns arrays of several clients' models by name, with an axis for the clients in front."""
    by_name = {}
    for name in models[0]:
        by_name[name] = np.stack([arrays[name] for arrays in models])
    return by_name


def _channels(model: str, name: str) -> int | None:
    return FLATTENED.get(model) if name == "fc1/kernel" else None


def lenet5(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """5x5 convolutions with BatchNorm, ReLU and max-pool; dense 120, 84."""
    for i in (1, 2):
        x = F.relu(F.max_pool2d(norm(t, stats, f"bn{i}", conv(t, f"conv{i}", x), groups), 2))
    return mlp(t, stats, x)


def cnn(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """Two 5x5 convolutions with ReLU and max-pool; dense 512."""
    for i in (1, 2):
        x = F.relu(F.max_pool2d(conv(t, f"conv{i}", x), 2))
    return mlp(t, stats, x)


def pfl_cnn(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """Two 3x3 convolutions with ReLU, max-pool; dense 128."""
    x = conv(t, "conv2", F.relu(conv(t, "conv1", x)))
    return mlp(t, stats, F.relu(F.max_pool2d(x, 2)))


def mlp(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """Dense layers fc1, fc2, ... with ReLU between, on the flattened input."""
    x, i = x.flatten(1), 1
    while f"fc{i}/kernel" in t:
        x, i = F.relu(dense(t, f"fc{i}", x)), i + 1
    return dense(t, "classifier", x)


def resnet18(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """torchvision's ResNet-18."""

    def block(name: str, x: Tensor, stride: int) -> Tensor:
        y = F.relu(norm(t, stats, f"{name}/bn1", conv(t, f"{name}/conv1", x, stride, 1), groups))
        y = norm(t, stats, f"{name}/bn2", conv(t, f"{name}/conv2", y, 1, 1), groups)
        if f"{name}/downsample_0/kernel" in t:
            x = norm(
                t, stats, f"{name}/downsample_1", conv(t, f"{name}/downsample_0", x, stride), groups
            )
        return F.relu(x + y)

    x = F.relu(F.max_pool2d(norm(t, stats, "bn1", conv(t, "conv1", x, 2, 3), groups), 3, 2, 1))
    for stage in range(1, 5):
        for i in range(2):
            x = block(f"layer{stage}_{i}", x, 2 if stage > 1 and i == 0 else 1)
    return dense(t, "classifier", x.mean((2, 3)))


def vit_s16(t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE) -> Tensor:
    """timm's ViT-S/16, with torch's fused attention."""

    def layer_norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], t[f"{name}/scale"], t[f"{name}/bias"], 1e-6)

    def attend(name: str, x: Tensor) -> Tensor:
        q, k, v = dense(t, f"{name}/qkv", x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return dense(
            t, f"{name}/proj", F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )

    x = F.interpolate(x, (SIZE, SIZE), mode="bilinear", antialias=True)
    x = (
        F.conv2d(x, t["patch_embed/kernel"], t["patch_embed/bias"], PATCH)
        .flatten(2)
        .transpose(1, 2)
    )
    x = torch.cat([t["cls_token"].expand(len(x), -1, -1), x], 1) + t["pos_embed"]
    depth = sum(name.endswith("qkv/kernel") for name in t)
    for name in (f"block_{i}" for i in range(depth)):
        x = x + attend(name, layer_norm(f"{name}/norm1", x))
        x = x + dense(
            t, f"{name}/fc2", F.gelu(dense(t, f"{name}/fc1", layer_norm(f"{name}/norm2", x)))
        )
    return dense(t, "classifier", layer_norm("norm", x[:, 0]))


def efficientnet_lite0(
    t: Tensors, stats: Tensors | None, x: Tensor, groups: Groups = ONE
) -> Tensor:
    """EfficientNet-Lite0, padded as TensorFlow's "SAME" for images of even size."""

    def normed(name: str, bn: str, x: Tensor, stride: int = 1) -> Tensor:
        size = t[f"{name}/kernel"].shape[-1]
        if stride == 2:
            x = F.pad(x, ((size - 2) // 2, (size - 1) // 2) * 2)
        return norm(
            t, stats, bn, conv(t, name, x, stride, 0 if stride == 2 else size // 2), groups, 1e-3
        )

    def block(name: str, x: Tensor, stride: int) -> Tensor:
        y = (
            F.relu6(normed(f"{name}/expand_conv", f"{name}/bn0", x))
            if f"{name}/expand_conv/kernel" in t
            else x
        )
        y = F.relu6(normed(f"{name}/depthwise_conv", f"{name}/bn1", y, stride))
        y = normed(f"{name}/project_conv", f"{name}/bn2", y)
        return x + y if x.shape == y.shape else y

    x = F.relu6(normed("conv_stem", "bn0", x, 2))
    for i in range(16):
        x = block(f"block_{i}", x, 2 if i in (1, 3, 5, 11) else 1)
    return dense(t, "classifier", F.relu6(normed("conv_head", "bn1", x)).mean((2, 3)))


NETS: dict[str, Callable[..., Tensor]] = {
    "lenet5": lenet5,
    "cnn": cnn,
    "pfl_cnn": pfl_cnn,
    "resnet18": resnet18,
    "vit_s16": vit_s16,
    "efficientnet_lite0": efficientnet_lite0,
    **dict.fromkeys(("logistic", "mlp64", "mlp200"), mlp),
}
"""(parameters, running statistics to update in place or None, images [B, C, H, W] in 0..1, groups=ONE) -> logits.

BatchNorm is in training mode. ReLU follows max-pooling, which gives equal results on fewer pixels."""


def conv(t: Tensors, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolution, with a bias if the network has one; 1x1 with an adapter as peft's `lora.Conv2d`, see `dense`."""
    kernel, a = t[f"{name}/kernel"], t.get(f"{name}/lora_a")
    y = F.conv2d(
        x, kernel, t.get(f"{name}/bias"), stride, padding, groups=x.shape[1] // kernel.shape[1]
    )
    if a is None:
        return y
    b = t[f"{name}/lora_b"]
    return y + F.conv2d(F.conv2d(x, a[..., None, None]), b[..., None, None]) * (LORA_SCALE / len(a))


def dense(t: Tensors, name: str, x: Tensor) -> Tensor:
    """Dense layer, x W' + b; with an adapter plus (x A') B' s / r, as peft's `lora.Linear`."""
    y, a = F.linear(x, t[f"{name}/kernel"], t[f"{name}/bias"]), t.get(f"{name}/lora_a")
    return (
        y
        if a is None
        else y + F.linear(F.linear(x, a), t[f"{name}/lora_b"]) * (LORA_SCALE / len(a))
    )


def norm(
    t: Tensors, stats: Tensors | None, name: str, x: Tensor, groups: Groups = ONE, eps: float = 1e-5
) -> Tensor:
    """BatchNorm with the statistics of each minibatch; updates the running statistics if `stats` holds any."""
    mean, var = (stats[f"{name}/mean"], stats[f"{name}/var"]) if stats else (None, None)
    scale, bias = t[f"{name}/scale"], t[f"{name}/bias"]
    if groups.count == 1:
        return F.batch_norm(x, mean, var, scale, bias, True, 0.1, eps)
    if groups.is_interleaved:  # a minibatch is a set of channels of a contiguous image
        scale, bias = scale.repeat(groups.count), bias.repeat(groups.count)
        joined = x.reshape(len(x) // groups.count, -1, *x.shape[2:])
        return F.batch_norm(joined, None, None, scale, bias, True, 0.1, eps).view_as(x)
    minibatches = x.chunk(groups.count)
    return torch.cat(
        [F.batch_norm(x, None, None, scale, bias, True, 0.1, eps) for x in minibatches]
    )
