"""The features of a Linen model: the input of its last layer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import flax.linen as nn
import jax.numpy as jnp
from jax import Array


class Features:
    """The features of the last call of a module while they are recorded."""

    value: Array | None = None
    """[B, ...]; None before a layer was called."""
    layer: str = ""
    """Path of the layer that they are the input of, "a/b"."""
    call: int = -1
    """Number of its call among those of the module."""


@contextlib.contextmanager
def recorded_features(call: int = -1, replacement: Array | None = None) -> Iterator[Features]:
    """Records the input of the last layer that Linen modules call.

    A layer has parameters and no layers of its own, and is called as such or as `Embed.attend`. Scales and offsets of
    the entries of an array, such as those of a LayerNorm, make no layer.

    Args:
        call: number of the call that gets the replacement as its input.
        replacement: like that input.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> module, x = nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]), jnp.ones((4, 5))
    >>> with recorded_features() as features:
    ...     logits = module.apply(module.init(jax.random.key(0), x), x)
    >>> logits.shape, features.value.shape, features.layer
    ((4, 2), (4, 3), 'layers_2')
    """
    features, numbers = Features(), itertools.count()

    def record(run, args, kwargs, context):
        number = next(numbers)
        if number == call:
            args, kwargs = (replacement, *args[1:]), (kwargs if args else dict(list(kwargs.items())[1:]))
        outputs, given = run(*args, **kwargs), [*args, *kwargs.values()]
        own = context.module.variables.get("params", {}) if context.method_name in ("__call__", "attend") else {}
        # a module that has layers of its own is none, even with parameters beside them, such as a ViT's class token
        is_layer = given and own and not any(hasattr(entry, "keys") for entry in own.values())
        if is_layer and (max(map(jnp.ndim, own.values())) > 1 or jnp.shape(outputs) != jnp.shape(given[0])):
            features.value, features.layer, features.call = given[0], "/".join(context.module.path), number
        return outputs

    with nn.intercept_methods(record):
        yield features
