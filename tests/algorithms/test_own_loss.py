"""Algorithms with a loss that sees the minibatch: the shipped ones on the oracle's network, and a user's own."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from support import worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.core.types import Anchor, Batch

WORLD = worlds.small()

SETTINGS = fv.Config(
    clients=4, rounds=1, local_epochs=1, weighting="samples", partition="iid", lanes="1"
)
WEIGHTS = {
    "moon": "moon.mu",
    "fedntd": "fedntd.beta",
    "feddecorr": "feddecorr.beta",
    "fedlc": "fedlc.tau",
}
"""Name of an algorithm -> hyperparameter that is the weight of what it adds to the loss."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_derivatives_by_weight_and_model_are_central_differences_and_padded_rows_change_none(
    x64, name
):
    """The same client with minibatches of 4 and of 8 rows, of which half are padding."""
    params, stats = worlds.variables()
    at, unravel = ravel_pytree((0.7, params))
    batch = jax.tree.map(lambda part: jnp.asarray(part[:4]), WORLD.pool)
    padded = jax.tree.map(lambda part: jnp.concatenate([part, 7 + 0 * part]), batch)
    own, previous = (worlds.variables(seed).params for seed in (1, 2))
    anchor = Anchor(own, (), previous, jnp.array([7, 1, 0]))

    @worlds.jit
    @jax.value_and_grad
    def loss(at, rows=batch):
        weight, params = unravel(at)
        hyper = worlds.hyper() | {WEIGHTS[name]: weight}
        arguments = rows, jnp.arange(len(rows.y)) < 4, jax.random.key(0), anchor
        value, _ = worlds.algorithm(name).loss(hyper, worlds.TASK, params, stats, *arguments)
        return value

    _, gradient = actual = loss(at)
    worlds.assert_close(loss(at, padded), actual, 1e-12)
    difference = (loss(at + 1e-5)[0] - loss(at - 1e-5)[0]) / 2e-5
    assert abs(gradient[0]) > 1e-4
    np.testing.assert_allclose(gradient.sum(), difference, rtol=1e-6)


# --- features


def cross_entropy(logits, y):
    return -jax.nn.log_softmax(logits)[y]


@pytest.mark.parametrize(
    ("model", "row", "dtype", "labels", "width"),
    [("vit_s16", (32, 32, 3), "uint8", (4,), 384), ("gru", (16,), "int32", (4, 16), 64)],
)
def test_features_of_a_named_model_are_the_input_of_its_head_in_float32(
    model, row, dtype, labels, width
):
    """Also where its arithmetic is in bfloat16."""
    task = resolve.model.named_task(fv.Config(model=model, precision="bfloat16"), row, 10)
    batch = Batch(jnp.zeros((4, *row), dtype), jnp.zeros(labels, jnp.int32))
    variables = jax.eval_shape(task.init, jax.random.key(0))
    with jax.numpy_dtype_promotion("standard"):  # as in a run: a ViT resizes its images in float32
        outputs, _ = jax.eval_shape(
            lambda v: task.forward(*v, batch, jnp.ones(4, bool), True), variables
        )
    assert outputs.features.shape[-1] == width
    assert {leaf.dtype.name for leaf in jax.tree.leaves(outputs)} == {"float32"}


class Ending(nn.Module):
    """Two layers, and what `end` makes of (module, input, hidden [B, 5])."""

    end: Callable

    @nn.compact
    def __call__(self, x):
        return self.end(self, x, nn.relu(nn.Dense(5, name="hidden")(x)))


def matrix(module, shape):
    return module.param("w", nn.initializers.lecun_normal(), shape)


@pytest.mark.parametrize(
    "end",
    [
        lambda module, x, h: nn.LayerNorm()(nn.Dense(3)(h)),
        lambda module, x, h: nn.Embed(3, 5).attend(h),
        lambda module, x, h: nn.Dense(3)(h) + h @ matrix(module, (5, 3)),
    ],
    ids=["LayerNorm", "Embed.attend", "adapter"],
)
def test_features_are_the_input_of_the_last_layer_that_mixes_entries(end):
    """Not that of a LayerNorm behind it."""
    task = fv.linen_task(Ending(end), cross_entropy, np.ones((1, 6), np.float32))
    batch = Batch(jnp.ones((4, 6)), jnp.zeros(4, int))
    model = jax.eval_shape(task.init, jax.random.key(0))
    outputs, _ = jax.eval_shape(lambda v: task.forward(*v, batch, jnp.ones(4, bool), True), model)
    assert outputs.features.shape == (4, 5)


def test_features_that_are_not_trained_are_refused_where_a_loss_reads_them():
    with pytest.raises(fv.UsageError, match="algorithm would equal FedAvg"):
        fv.simulation(fv.Config(model="linear", algorithm="moon", clients=4))
    fv.simulation(fv.Config(model="linear", algorithm="fedntd", clients=4))


def test_an_nnx_module_has_outputs_and_no_features():
    x, y = worlds.images(80)
    data = np.asarray(x, np.float32).reshape(80, -1), y

    def make(rngs):
        return nnx.Linear(data[0].shape[1], 3, rngs=rngs)

    task = fv.nnx_task(make, cross_entropy, data[0][:1])
    fv.run(SETTINGS, data=data, task=task, algorithm=fv.algorithms.fedntd())
    with pytest.raises(
        fv.UsageError, match=r"needs features; task.forward must return [^\n]*Outputs.features"
    ):
        fv.run(SETTINGS, data=data, task=task, algorithm=fv.algorithms.moon())


# --- FedLC


@pytest.mark.quick
def test_fedlc_trains_no_logit_of_a_class_without_rows_and_pushes_up_a_rarer_class_more(x64):
    params, stats = worlds.variables()
    batch = jax.tree.map(jnp.asarray, Batch(WORLD.pool.x[:4], np.int32([0, 1, 0, 1])))

    def gradient_by_bias(*counts):
        anchor = Anchor(params, (), (), jnp.array(counts))
        grads, _ = jax.grad(worlds.algorithm("fedlc").loss, argnums=2, has_aux=True)(
            worlds.hyper(), worlds.TASK, params, stats, batch, jnp.ones(4, bool), None, anchor
        )
        return grads["classifier"]["bias"]

    rare, equal, all_classes = (
        gradient_by_bias(40, *counts) for counts in ((3, 0), (40, 0), (3, 3))
    )
    assert abs(rare[2]) < 1e-12 < all_classes[2]
    assert rare[1] < equal[1] < 0
