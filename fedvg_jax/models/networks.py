"""The models, each declared once: how it is made, and what settings and checks depend on. No jax."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedvg_jax.host import hardware

Reference = str
"""MODULE:NAME of a function in this package, such as models.plain:CNN, which is imported when it is needed."""


def referenced(reference: Reference) -> Callable[..., Any]:
    """Returns the function of a reference."""
    return pkgutil.resolve_name(f"fedvg_jax.{reference}")


class Costs(NamedTuple):
    """What the size of a model calls for on a kind of platform, where a setting is `auto` or there is none."""

    client_bytes: int | None = None
    """Bytes of one client in training, 0 where they are negligible, for a model with cohorts that all devices share
    (`--devices auto`); None: it uses one device. The devices of a CPU are its cores. One client per core is faster than
    one client on all cores only for the models that are so marked."""
    rows_per_scoring_pass: int = 0
    """0: as `hardware.Choices` says. On a CPU 512 rows take ten MLPs 0.76, 0.62 and 0.78 times the seconds of one group
    by one on 64, 784 and 3,072 inputs, and 5,000 rows of 1,280 inputs 0.65 times; 1,024 rows are no faster."""
    clients_per_scoring_pass: int = 1
    """Clients that one device scores together where it has fewer lanes. The matmuls of narrow layers are then as wide
    as all their clients: on one CPU core the gradients of ten linear heads on 5,120 rows of 1,280 features take 195 ms
    one by one, 48 ms together in passes of 512 rows."""
    microbatch_rows: int = 0
    """Rows per microbatch, of a model in which no row depends on another; 0: whole minibatches. The activations of two
    ViT images fit a CPU's caches."""


class Network(NamedTuple):
    """A model."""

    make: Reference
    """(classes, and its `settings`) -> Flax module"""
    block_of: Reference = "models.task:head_and_base"
    """Path of a tensor -> name of its block."""
    stage_of: Reference | None = None
    """As `block_of`, for reference block."""
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
    """Settings of the model that it takes, such as norm_layers."""
    options: Mapping[str, Any] = {}
    """Further arguments of `make`."""
    on_cpu: Costs = Costs()
    on_accelerator: Costs = Costs(client_bytes=0)


_SHARED = Costs(client_bytes=0)
_CONVOLUTIONS = Network("", has_convolutions=True)
_BATCH_NORM = _CONVOLUTIONS._replace(has_batch_norm=True)
_RESNET = _BATCH_NORM._replace(
    block_of="models.resnet:blocks_residual",
    stage_of="models.resnet:blocks_stage",
    settings=("norm_layers",),
)
_RESNETS = {
    "resnet18": _RESNET._replace(make="models.resnet:resnet18", on_cpu=_SHARED),
    "resnet34": _RESNET._replace(make="models.resnet:resnet34"),
    "resnet50": _RESNET._replace(make="models.resnet:resnet50"),
}
_VIT = Network(
    "",
    "models.vit:blocks",
    channels=(1, 3),
    on_cpu=Costs(microbatch_rows=2),
    on_accelerator=Costs(0, rows_per_scoring_pass=64),
)
"""Whatever the images, it sees 224 x 224 pixels."""

MODELS = {
    "mlp": Network("models.plain:MLP", takes_rows=True, on_cpu=Costs(rows_per_scoring_pass=512)),
    "linear": Network("models.plain:Linear", takes_rows=True, on_cpu=Costs(None, 512, 16)),
    "tinycnn": _CONVOLUTIONS._replace(make="models.plain:TinyCNN", smallest=4),
    "cnn": _CONVOLUTIONS._replace(make="models.plain:CNN", smallest=16, on_cpu=_SHARED),
    "lenet5": _BATCH_NORM._replace(make="models.plain:LeNet5", smallest=16, on_cpu=_SHARED),
    **_RESNETS,
    **{
        f"{name}_cifar": network._replace(options={"stem": "cifar"})
        for name, network in _RESNETS.items()
    },
    "vit_s16": _VIT._replace(
        make="models.vit:vit_s16", on_cpu=Costs(640 * 2**20, microbatch_rows=2)
    ),
    "vit_b16": _VIT._replace(make="models.vit:vit_b16"),
    "efficientnet_lite0": _BATCH_NORM._replace(
        make="models.efficientnet:efficientnet_lite0",
        block_of="models.efficientnet:blocks",
        settings=("norm_layers",),
    ),
    "gru": Network("models.plain:GRU", "core.groups:first_component", is_sequence=True),
}


def costs(model: str) -> Costs:
    """Returns what the size of a model calls for on the platform of the current hardware."""
    return MODELS[model].on_cpu if hardware.current().is_cpu else MODELS[model].on_accelerator
