"""The features of a Linen model: the input of its last layer with parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import flax.linen as nn
from jax import Array


class Features:
    """The features of the last call of a module while they are recorded."""

    value: Array | None = None
    """[B, ...]; None before a layer with parameters was called."""


@contextlib.contextmanager
def recorded_features() -> Iterator[Features]:
    """Records the input of the last layer with parameters that Linen modules call.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> module, x = nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]), jnp.ones((4, 5))
    >>> with recorded_features() as features:
    ...     logits = module.apply(module.init(jax.random.key(0), x), x)
    >>> logits.shape, features.value.shape
    ((4, 2), (4, 3))
    """
    features = Features()

    def record(call, args, kwargs, context):
        outputs, given = call(*args, **kwargs), [*args, *kwargs.values()]
        own = context.module.variables.get("params", {}) if context.method_name == "__call__" else {}
        # a module that has layers of its own is none, even with parameters beside them, such as a ViT's class token
        if given and own and not any(hasattr(entry, "keys") for entry in own.values()):
            features.value = given[0]
        return outputs

    with nn.intercept_methods(record):
        yield features
