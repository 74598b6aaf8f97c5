from fedvg_jax.models.conv.rewrite import fast_convolutions as fast_convolutions
from fedvg_jax.models.efficientnet import efficientnet_lite0 as efficientnet_lite0
from fedvg_jax.models.plain import (
    CNN as CNN,
    GRU as GRU,
    MLP as MLP,
    LeNet5 as LeNet5,
    TinyCNN as TinyCNN,
)
from fedvg_jax.models.resnet import resnet18 as resnet18, resnet34 as resnet34, resnet50 as resnet50
from fedvg_jax.models.task import (
    classification as classification,
    classification_metrics as classification_metrics,
    next_character as next_character,
)
from fedvg_jax.models.vit import vit_b16 as vit_b16, vit_s16 as vit_s16
