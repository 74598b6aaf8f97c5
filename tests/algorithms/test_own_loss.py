"""Algorithms with a loss that sees the minibatch: the shipped ones on the oracle's network, and a user's own."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import worlds

import fedvg_jax as fv
from fedvg_jax import config, resolve
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
    (params, stats), batch = (
        worlds.variables(),
        jax.tree.map(lambda part: jnp.asarray(part[:4]), WORLD.pool),
    )
    padded = jax.tree.map(lambda part: jnp.concatenate([part, 7 + 0 * part]), batch)
    anchor = Anchor(
        worlds.variables(1).params, (), worlds.variables(2).params, jnp.array([7, 1, 0])
    )

    @worlds.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def loss(weight, params, rows=batch):
        hyper, mask = worlds.hyper() | {WEIGHTS[name]: weight}, jnp.arange(len(rows.y)) < 4
        return worlds.algorithm(name).loss(
            hyper, worlds.TASK, params, stats, rows, mask, jax.random.key(0), anchor
        )[0]

    at = jnp.float64(0.7), params
    _, (by_weight, by_params) = actual = loss(*at)
    worlds.assert_close(loss(*at, padded), actual, 1e-12)
    ahead, back = (jax.tree.map(lambda x: x + h, at) for h in (1e-5, -1e-5))  # noqa: B023
    difference = (loss(*ahead)[0] - loss(*back)[0]) / 2e-5
    assert abs(by_weight) > 1e-4
    np.testing.assert_allclose(
        by_weight + sum(x.sum() for x in jax.tree.leaves(by_params)), difference, rtol=1e-6
    )


# --- features


def cross_entropy(logits, y):
    return -jax.nn.log_softmax(logits)[y]


@pytest.mark.parametrize("model", ["vit_s16", "gru"])
def test_features_of_a_named_model_are_the_input_of_its_head_in_float32(model):
    """Also where its arithmetic is in bfloat16."""
    is_sequence = config.MODELS[model].is_sequence
    row, labels = ((16,), (4, 16)) if is_sequence else ((32, 32, 3), (4,))
    task = resolve.model.named_task(fv.Config(model=model, precision="bfloat16"), row, 10)
    x = jax.ShapeDtypeStruct((4, *row), jnp.int32 if is_sequence else jnp.uint8)
    batch, variables = (
        Batch(x, jax.ShapeDtypeStruct(labels, jnp.int32)),
        jax.eval_shape(task.init, jax.random.key(0)),
    )
    with jax.numpy_dtype_promotion("standard"):  # as in a run: a ViT resizes its images in float32
        outputs, _ = jax.eval_shape(
            lambda v, b: task.forward(*v, b, jnp.ones(4, bool), True), variables, batch
        )
    head = variables.params["classifier"]
    assert outputs.features.shape[-1] == (
        head["kernel"].shape[0] if "kernel" in head else head["weight"].shape[1]
    )
    assert {outputs.features.dtype, outputs.outputs.dtype, outputs.loss.dtype} == {
        jnp.dtype(jnp.float32)
    }


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
    task, batch = (
        fv.linen_task(Ending(end), cross_entropy, np.ones((1, 6), np.float32)),
        Batch(jnp.ones((4, 6)), jnp.zeros(4, int)),
    )
    model = jax.eval_shape(task.init, jax.random.key(0))
    outputs, _ = jax.eval_shape(lambda v: task.forward(*v, batch, jnp.ones(4, bool), True), model)
    assert outputs.features.shape == (4, 5)


def test_features_that_are_not_trained_are_refused_where_a_loss_reads_them():
    with pytest.raises(fv.UsageError, match="algorithm moon would equal FedAvg"):
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
