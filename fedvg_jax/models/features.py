"""The features of a Linen model: the input of its last layer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

_CALLS = ("__call__", "attend")


class Features:
    """The features of the last call of a module while they are recorded."""

    value: Array | None = None
    """[B, ...]; None before a layer was called."""
    layer: str = ""
    """Path of the layer that they are the input of, "a/b"."""
    name: str = ""
    """Of the checkpoint that a trace has of them."""


@contextlib.contextmanager
def recorded_features(is_named: bool = False) -> Iterator[Features]:
    """Records the input of the last layer that Linen modules call.

    A layer has parameters and no layers of its own, and is called as such or as `Embed.attend`. Scales and offsets of
    the entries of an array, such as those of a LayerNorm, make no layer.

    Args:
        is_named: whether every module's input gets a `checkpoint_name`, for `core.dependence`.

    >>> module, x = nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]), jnp.ones((4, 5))
    >>> with recorded_features() as features:
    ...     logits = module.apply(module.init(jax.random.key(0), x), x)
    >>> logits.shape, features.value.shape, features.layer
    ((4, 2), (4, 3), 'layers_2')
    """
    features, numbers = Features(), itertools.count()

    def record(run, args, kwargs, context):
        name = f"features {next(numbers)}"
        if is_named and args and context.method_name in _CALLS:
            args = jax.tree.map(lambda x: checkpoint_name(x, name), args[0]), *args[1:]
        outputs, given = run(*args, **kwargs), [*args, *kwargs.values()]
        own = context.module.variables.get("params", {}) if context.method_name in _CALLS else {}
        # a module that has layers of its own is none, even with parameters beside them, such as a ViT's class token
        is_layer = given and own and not any(hasattr(entry, "keys") for entry in own.values())
        if is_layer and (max(map(jnp.ndim, own.values())) > 1 or jnp.shape(outputs) != jnp.shape(given[0])):
            features.value, features.layer, features.name = given[0], "/".join(context.module.path), name
        return outputs

    with nn.intercept_methods(record):
        yield features
