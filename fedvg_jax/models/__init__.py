"""Models in Flax, and tasks made from them; no other package imports Flax."""

from fedvg_jax.models.adapt import linen_task, nnx_task
from fedvg_jax.models.cnn import CNN, LeNet5, TinyCNN
from fedvg_jax.models.conv.rewrite import fast_convolutions
from fedvg_jax.models.efficientnet import efficientnet_lite0
from fedvg_jax.models.gru import GRU
from fedvg_jax.models.mlp import MLP
from fedvg_jax.models.resnet import resnet18, resnet34, resnet50
from fedvg_jax.models.task import classification, next_character
from fedvg_jax.models.task import metrics as classification_metrics
from fedvg_jax.models.vit import vit_b16, vit_s16

__all__ = [
    "CNN",
    "GRU",
    "MLP",
    "LeNet5",
    "TinyCNN",
    "classification",
    "classification_metrics",
    "efficientnet_lite0",
    "fast_convolutions",
    "linen_task",
    "next_character",
    "nnx_task",
    "resnet18",
    "resnet34",
    "resnet50",
    "vit_b16",
    "vit_s16",
]
