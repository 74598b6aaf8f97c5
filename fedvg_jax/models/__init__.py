"""Models in Flax, and tasks made from them; no other package imports Flax.

Public names are imported when they are first used, so that a run loads only its network. Type checkers read them in
`__init__.pyi`.
"""

import importlib

_HOMES = {
    "CNN": "plain",
    "GRU": "plain",
    "LeNet5": "plain",
    "MLP": "plain",
    "TinyCNN": "plain",
    "classification": "task",
    "classification_metrics": "task",
    "efficientnet_lite0": "efficientnet",
    "fast_convolutions": "conv.rewrite",
    "next_character": "task",
    "resnet18": "resnet",
    "resnet34": "resnet",
    "resnet50": "resnet",
    "vit_b16": "vit",
    "vit_s16": "vit",
}
"""Public name -> the module below this one that defines it."""

__all__ = [*_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'fedvg_jax.models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
