"""Models in Flax, and tasks made from them; no other package imports Flax."""

from fedvg_jax.models import task
from fedvg_jax.models.adapt import linen_task as linen_task
from fedvg_jax.models.adapt import nnx_task as nnx_task
from fedvg_jax.models.conv.rewrite import fast_convolutions as fast_convolutions
from fedvg_jax.models.efficientnet import efficientnet_lite0 as efficientnet_lite0
from fedvg_jax.models.plain import CNN as CNN
from fedvg_jax.models.plain import GRU as GRU
from fedvg_jax.models.plain import MLP as MLP
from fedvg_jax.models.plain import LeNet5 as LeNet5
from fedvg_jax.models.plain import TinyCNN as TinyCNN
from fedvg_jax.models.resnet import resnet18 as resnet18
from fedvg_jax.models.resnet import resnet34 as resnet34
from fedvg_jax.models.resnet import resnet50 as resnet50
from fedvg_jax.models.task import classification as classification
from fedvg_jax.models.task import next_character as next_character
from fedvg_jax.models.vit import vit_b16 as vit_b16
from fedvg_jax.models.vit import vit_s16 as vit_s16

classification_metrics = task.metrics
