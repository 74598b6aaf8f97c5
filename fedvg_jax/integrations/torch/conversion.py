"""ResNets and ViTs of torchvision and timm, and EfficientNet-Lite0, as models of fedvg_jax, and back.

`models.pretrained` has the names and the axes of the tensors.
"""

# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
# without PyTorch, pyright takes this folder for it

from __future__ import annotations

import jax
import numpy as np
import torch
from torch import Tensor, nn

from fedvg_jax.config import Config
from fedvg_jax.core.types import Task, UsageError, Variables
from fedvg_jax.models import pretrained
from fedvg_jax.runs.registry import named_task

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "vit_s16", "vit_b16")
HEADS = ("fc.weight", "heads.head.weight", "head.weight")
"""Names of the last layer's matrix [C, features] in torchvision's ResNets, its ViTs, and timm's ViTs."""


def from_module(module: nn.Module, architecture: str, image_shape: tuple[int, int, int]) -> tuple[Task, Variables]:
    """Returns a torchvision or timm model, or an EfficientNet-Lite0, as a task and its variables, head included.

    The task's images are [B, H, W, D]; floats are used as they are, so the logits equal those of the module in
    evaluation mode on the same images [B, D, H, W].

    Args:
        module: a model of torchvision, timm or efficientnet-lite-pytorch, or one whose state dict has the same names
            and shapes.
        architecture: "resnet18", "resnet34", "resnet50", "vit_s16" (timm), "vit_b16" or "efficientnet_lite0".
        image_shape: (H, W, D) of the images.

    Raises:
        UsageError: the architecture is unknown, or the first tensor that is missing, unknown or of another shape.
    """
    if architecture not in ARCHITECTURES:
        raise UsageError(f"unknown architecture '{architecture}'; there are {', '.join(ARCHITECTURES)}")
    tensors = {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}
    heads = [name for name in HEADS if name in tensors]
    if not heads:
        raise UsageError(f"{type(module).__name__} has no head; expected one of {', '.join(HEADS)}")
    task = named_task(Config(model=architecture), image_shape, len(tensors[heads[0]]))
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    source = f"{type(module).__name__}.state_dict()"
    return task, pretrained.from_tensors(tensors, shapes, architecture, head=True, source=source)


def to_state_dict(variables: Variables, architecture: str, library: str | None = None) -> dict[str, Tensor]:
    """Returns a model's tensors under torch's names, for `load_state_dict`; the inverse of `from_module`.

    BatchNorm's counters, which fedvg_jax does not use, are 0.

    Args:
        variables: the model's variables.
        architecture: as in `from_module`.
        library: "torchvision" or "timm", whose names a ViT gets; by default torchvision's for vit_b16 and timm's for
            vit_s16.

    Raises:
        UsageError: the architecture or the library is unknown.
    """
    if architecture not in ARCHITECTURES:
        raise UsageError(f"unknown architecture '{architecture}'; there are {', '.join(ARCHITECTURES)}")
    tensors = pretrained.to_tensors(variables, architecture, library)
    assert tensors is not None, "layers of these models have different names"
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in tensors.items()}
