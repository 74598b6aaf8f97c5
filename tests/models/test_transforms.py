"""Gradients by microbatches equal those of whole minibatches; formats of numbers keep dtypes and stay close."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from support import programs, worlds

from fedvg_jax.core import trained_part
from fedvg_jax.core.types import Batch, ClientReturn, Data
from fedvg_jax.models import task as tasks, transforms
from fedvg_jax.models.plain import MLP
from fedvg_jax.weightings import signals

WHOLE = tasks.classification(MLP(3, (5,)), 3, (2, 2, 3))
"""Any model in which no row depends on another."""

X = np.random.default_rng(0).integers(0, 256, (6, 2, 2, 3), np.uint8)
BATCH = Batch(jnp.asarray(X), jnp.arange(6, dtype=jnp.int32) % 3)


@pytest.fixture
def model(x64):
    return worlds.variables(task=WHOLE)


@functools.cache
def by_microbatches(max_rows):
    return transforms.accumulate_gradients(WHOLE, max_rows)


@pytest.mark.parametrize("real", [6, 3, 0])
@pytest.mark.parametrize("max_rows", [1, 4])
def test_loss_and_gradient_equal_those_of_the_whole_minibatch(model, max_rows, real):
    """4 does not divide 6, so microbatches have 3 rows; with 3 real rows some are partly or wholly padding."""
    mask = jnp.arange(6) < real
    actual, expected = (
        value_and_grad(task)(*model, BATCH, mask) for task in (by_microbatches(max_rows), WHOLE)
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-15)


def test_the_rule_closes_over_no_frozen_tensor(model):
    """A program has the base as an argument: its gradients by microbatches are those of the part of the whole model.

    On two devices the function of a device closes over the base, as a round's does.
    """
    part, base = trained_part.split(model, lambda path: path.startswith("classifier/"))

    def gradient(params, base):
        task = transforms.accumulate_gradients(WHOLE, 4, base)
        loss = jax.jit(task.loss, static_argnums=4)  # as a run's
        own = jax.grad(lambda params: loss(params, {}, BATCH, jnp.arange(6) < 5, True)[0])
        return jax.shard_map(own, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(params)

    mesh = Mesh(jax.devices()[:2], ("devices",))
    part, base = jax.device_put((part, base), NamedSharding(mesh, P()))
    of_whole = worlds.jit(
        jax.grad(lambda params: WHOLE.loss(params, {}, BATCH, jnp.arange(6) < 5, True)[0])
    )
    expected = of_whole(model.params)["classifier"]
    worlds.assert_close(worlds.jit(gradient)(part.params, base)["classifier"], expected, 1e-12)


def test_microbatch_of_padding_is_skipped():
    """This mean is 0 / 0 without real rows; for rows 3, 1 and padding, d/dw mean(w x) = 2."""

    def loss(params, stats, x, mask, train):
        return jnp.where(mask, params["w"] * x.astype(float), 0).sum() / mask.sum().astype(
            float
        ), stats

    task = transforms.accumulate_gradients(WHOLE._replace(loss=loss), 2)
    x, mask = jnp.array([3, 1, 0, 0, 0, 0]), jnp.arange(6) < 2
    gradient = jax.grad(lambda p: task.loss(p, {}, x, mask, True)[0])({"w": jnp.float32(5)})
    assert gradient["w"] == 2


def test_second_derivatives_equal_those_of_the_whole_minibatch(model):
    def of(task, params):
        gradient = jax.grad(lambda p: task.loss(p, {}, BATCH, jnp.arange(6) < 5, True)[0])
        along = jax.tree.map(jnp.cos, params)
        _, pullback = jax.vjp(gradient, params)
        return jax.jvp(gradient, (params,), (along,)), pullback(along)

    actual, expected = worlds.jit(
        lambda params: [of(task, params) for task in (by_microbatches(2), WHOLE)]
    )(model.params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_groups_that_are_scored_as_one_batch_pass_through_microbatches(model):
    groups = jnp.array([[0, 1, 2], [3, 4, -1], [-1, -1, -1]], jnp.int32)
    client, data = (
        ClientReturn(model, jnp.int32(1), model.params),
        Data(BATCH, groups, groups, groups),
    )
    measures = [
        signals.validation_gradient(by_microbatches(2), True, groups_per_pass)
        for groups_per_pass in (1, 3)
    ]
    single, wide = worlds.jit(lambda *given: [measure({}, *given) for measure in measures])(
        client, data
    )
    worlds.assert_close(wide, single, 1e-12)


def test_float_images_keep_their_gradient(model):
    """uint8 images have no gradient, but that of float images must not become 0."""
    x = jnp.asarray(X, jnp.float64) / 255
    task = by_microbatches(2)
    gradient = worlds.jit(
        jax.grad(lambda x: task.loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0])
    )(x)
    assert jnp.abs(gradient).reshape(6, -1).max(1).min() > 0


@functools.cache
def value_and_grad(task):
    return worlds.jit(lambda *args: jax.value_and_grad(task.loss, has_aux=True)(*args, True))


def functions(name):
    """Returns the gradient of a batch with its statistics, outputs, and sums, of the parameters in this format."""
    task, (params, stats) = transforms.compute_in(worlds.TASK, name), worlds.variables()
    batch = jax.tree.map(lambda x: jnp.asarray(x[:12]), worlds.small().pool)
    mask = jnp.arange(12) < 10

    def run(params):
        gradient = jax.value_and_grad(task.loss, has_aux=True)(params, stats, batch, mask, True)
        outputs, sums = task.predict(params, stats, batch), task.measure(params, stats, batch, mask)
        return {"gradient": gradient, "predict": outputs, "measure": sums}

    return run, params


def test_highest_asks_for_full_precision_in_every_product():
    """A CPU computes the same either way."""
    products = [e for e in programs.equations(*functions("highest")) if "dot" in e.primitive.name]
    precisions = {equation.params["precision"] for equation in products}
    assert len(products) >= 6 and precisions == {2 * (jax.lax.Precision.HIGHEST,)}


def test_bfloat16_changes_results_within_its_rounding():
    """A number is rounded by 2^-9 of itself; a few operations in a row stay within 2^-4 of the largest entry."""
    exact, rough = (
        worlds.jit(run)(params) for run, params in map(functions, ("default", "bfloat16"))
    )
    for name in exact:
        leaves = [jax.tree.leaves(results[name]) for results in (exact, rough)]
        floats = [pair for pair in zip(*leaves, strict=True) if pair[0].dtype == np.float32]
        assert any((a != b).any() for a, b in floats), name
        assert all(np.abs(a - b).max() <= 2**-4 * max(1, np.abs(a).max()) for a, b in floats), name
