"""The models, each declared once: how it is made, and what settings and checks depend on. No jax."""

from __future__ import annotations

from typing import NamedTuple

from fedvg_jax.config.declare import Reference


class Network(NamedTuple):
    """A model."""

    make: Reference
    """(classes, and its `settings`) -> Flax module"""
    block_of: Reference = "models.task:head_and_base"
    """Path of a tensor -> name of its block."""
    stage_of: Reference | None = None
    """As `block_of`, for the departure block."""
    smallest: int = 1
    """Smallest height and width of images that it takes."""
    channels: tuple[int, ...] = ()
    """Numbers of channels that images may have; () for any."""
    has_convolutions: bool = False
    has_batch_norm: bool = False
    """Whether it has running statistics; a ResNet may have group normalisation instead."""
    takes_rows: bool = False
    """Whether it takes rows of any shape, such as features and tables, and not images only."""
    is_sequence: bool = False
    """Whether it gives a label to every place of a row [T, L], and not one to each row."""
    settings: tuple[str, ...] = ()
    """Settings of the model that it takes, such as stem."""


_CONVOLUTIONS = Network("", has_convolutions=True)
_BATCH_NORM = _CONVOLUTIONS._replace(has_batch_norm=True)
_RESNET = _BATCH_NORM._replace(
    block_of="models.resnet:blocks_residual", stage_of="models.resnet:blocks_stage", settings=("stem", "norm_layers")
)

MODELS = {
    "mlp": Network("models.mlp:MLP", takes_rows=True),
    "linear": Network("models.mlp:Linear", takes_rows=True),
    "tinycnn": _CONVOLUTIONS._replace(make="models.cnn:TinyCNN", smallest=4),
    "cnn": _CONVOLUTIONS._replace(make="models.cnn:CNN", smallest=16),
    "lenet5": _BATCH_NORM._replace(make="models.cnn:LeNet5", smallest=16),
    "resnet18": _RESNET._replace(make="models.resnet:resnet18"),
    "resnet34": _RESNET._replace(make="models.resnet:resnet34"),
    "resnet50": _RESNET._replace(make="models.resnet:resnet50"),
    "vit_s16": Network("models.vit:vit_s16", "models.vit:blocks", channels=(1, 3)),
    "vit_b16": Network("models.vit:vit_b16", "models.vit:blocks", channels=(1, 3)),
    "efficientnet_lite0": _BATCH_NORM._replace(
        make="models.efficientnet:efficientnet_lite0", block_of="models.efficientnet:blocks", settings=("norm_layers",)
    ),
    "gru": Network("models.gru:GRU", "core.groups:first_component", is_sequence=True),
}
