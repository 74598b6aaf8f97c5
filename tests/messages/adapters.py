"""Adapters that a task cannot have."""

import flax.linen as nn
import jax
import jax.numpy as jnp

import fedvg_jax as fv


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(6, (1, 1), name="pointwise")(nn.Conv(3, (3, 3), name="spatial")(x))
        return nn.Dense(3, name="head")(x.mean((1, 2)))


def lora(rank=1, include="pointwise", again=False):
    """Returns the call that adds adapters to a network."""

    def call():
        task = fv.linen_task(Net(), lambda output, y: -output[0, y], jnp.ones((1, 4, 4, 2)))
        task, start = fv.lora(task, task.init(jax.random.key(0)), rank, include)
        if again:
            fv.lora(task, start, rank, include)

    return call


CASES = [
    ("a rank over a width", lora(rank=4), "rank"),
    ("a rank that is a fraction", lora(rank=2.0), "rank"),
    ("a layer that has none", lora(include="spatial"), "spatial"),
    ("adapters twice", lora(again=True), "pointwise"),
]
