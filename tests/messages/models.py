"""Mistakes in a module, a loss, or a file of weights."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx

import fedvg_jax as fv
from fedvg_jax.core.types import Variables
from fedvg_jax.models import pretrained
from messages import scratch

EXAMPLE = np.zeros((1, 4), np.float32)


def squared(output, y):
    return (output - y) ** 2


class Column(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x)[:, 0]


def linen(*layers, loss=squared, example=EXAMPLE, x=EXAMPLE, **options):
    """Returns a call that makes a task of these layers, and traces its loss on x."""

    def call():
        module = layers[0] if len(layers) == 1 else nn.Sequential(layers)
        task = fv.linen_task(module, loss, example, **options)
        batch = fv.Batch(jnp.asarray(x), jnp.zeros(len(x)))
        fv.check_task(task, batch)

    return call


def weights(content):
    """Returns a call that reads a file of weights with these bytes."""

    def use(path):
        path.write_bytes(content)
        pretrained.read(path)

    return scratch(use, "model.safetensors")


def saved(params, where):
    return scratch(lambda path: pretrained.save(path, Variables(params, {}), "own"), where)


HEADER = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
LENGTH = len(HEADER).to_bytes(8, "little")

CASES = [
    # a module
    ("a class", linen(Column), "Column"),
    (
        "statistics without a mask",
        linen(nn.Dense(3), nn.BatchNorm(use_running_average=False)),
        "mask",
    ),
    ("one output of all rows", linen(nn.Dense(1), lambda x: x.mean(0)), "loss of one example"),
    (
        "an NNX module",
        lambda: fv.nnx_task(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), squared, EXAMPLE),
        "nnx_task: make",
    ),
    ("a dict as example", linen(Column(), example={"a": EXAMPLE}), "example"),
    ("data of another width", linen(Column(), x=EXAMPLE[:, :3]), "example"),
    # a loss
    ("a loss of one argument", linen(Column(), loss=lambda output: output), "loss"),
    ("a loss of shape [1]", linen(nn.Dense(1)), "loss"),
    ("a metric named loss", linen(Column(), metrics={"loss": squared}), "metrics"),
    ("metrics as a list", linen(Column(), metrics=[squared]), "metrics"),
    # files of weights
    (
        "a pickle",
        weights(b"PK\x03\x04 a zipped pickle, as torch saves it"),
        "model.safetensors",
    ),
    ("a cut tensor", weights(LENGTH + HEADER + 7 * b"\0"), "model.safetensors"),
    (
        "a folder that is not there",
        saved({"a": jnp.ones(2)}, "no/such/folder.safetensors"),
        "folder.safetensors",
    ),
]
