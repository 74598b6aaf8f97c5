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
MASK = np.arange(6) < 5


@pytest.fixture
def model(x64):
    return worlds.variables(task=WHOLE)


@functools.cache
def by_microbatches(max_rows):
    return transforms.accumulate_gradients(WHOLE, max_rows)


def gradient(task, params, batch=BATCH, mask=MASK):
    return jax.grad(lambda params: task.loss(params, {}, batch, mask, True)[0])(params)


@pytest.mark.parametrize("real", [6, 3, 0])
@pytest.mark.parametrize("max_rows", [1, 4])
def test_loss_and_gradient_equal_those_of_the_whole_minibatch(model, max_rows, real):
    """4 does not divide 6, so microbatches have 3 rows; with 3 real rows some are partly or wholly padding."""
    mask = jnp.arange(6) < real
    actual = value_and_grad(by_microbatches(max_rows))(*model, BATCH, mask)
    expected = value_and_grad(WHOLE)(*model, BATCH, mask)
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-15)


def test_the_rule_closes_over_no_frozen_tensor(model):
    """A program has the base as an argument: its gradients by microbatches are those of the part of the whole model.

    On two devices the function of a device closes over the base, as a round's does.
    """
    part, base = trained_part.split(model, lambda path: path.startswith("classifier/"))

    def of_part(params, base):
        task = transforms.accumulate_gradients(WHOLE, 4, base)
        task = task._replace(loss=jax.jit(task.loss, static_argnums=4))  # as a run's
        own = functools.partial(gradient, task)
        return jax.shard_map(own, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(params)

    mesh = Mesh(jax.devices()[:2], ("devices",))
    part, base = jax.device_put((part, base), NamedSharding(mesh, P()))
    actual = worlds.jit(of_part)(part.params, base)["classifier"]
    worlds.assert_close(actual, gradient(WHOLE, model.params)["classifier"], 1e-12)


def test_microbatch_of_padding_is_skipped():
    """This mean is 0 / 0 without real rows; for rows 3, 1 and padding, d/dw mean(w x) = 2."""

    def loss(params, stats, x, mask, train):
        products = jnp.where(mask, params["w"] * x, 0)
        return products.sum() / mask.sum().astype(float), stats

    task = transforms.accumulate_gradients(WHOLE._replace(loss=loss), 2)
    x = jnp.array([3.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert gradient(task, {"w": jnp.float32(5)}, x, jnp.arange(6) < 2)["w"] == 2


def test_second_derivatives_equal_those_of_the_whole_minibatch(model):
    @worlds.jit
    def both(params):
        return [of(task, params) for task in (by_microbatches(2), WHOLE)]

    def of(task, params):
        gradient_of = functools.partial(gradient, task)
        along = jax.tree.map(jnp.cos, params)
        _, pullback = jax.vjp(gradient_of, params)
        return jax.jvp(gradient_of, (params,), (along,)), pullback(along)

    actual, expected = both(model.params)
    chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_groups_that_are_scored_as_one_batch_pass_through_microbatches(model):
    groups = jnp.array([[0, 1, 2], [3, 4, -1], [-1, -1, -1]], jnp.int32)
    client = ClientReturn(model, jnp.int32(1), model.params)
    data = Data(BATCH, groups, groups, groups)

    def scored(groups_per_pass):
        measure = signals.validation_gradient(by_microbatches(2), True, groups_per_pass)
        return worlds.jit(measure)({}, client, data)

    worlds.assert_close(scored(3), scored(1), 1e-12)


def test_float_images_keep_their_gradient(model):
    """uint8 images have no gradient, but that of float images must not become 0."""
    loss = by_microbatches(2).loss

    @worlds.jit
    @jax.grad
    def gradient_of(x):
        return loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0]

    assert gradient_of(X / 255).reshape(6, -1).any(1).all()


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
        outputs = task.predict(params, stats, batch)
        sums = task.measure(params, stats, batch, mask)
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
        is_changed = False
        leaves = zip(*map(jax.tree.leaves, (exact[name], rough[name])), strict=True)
        for a, b in leaves:
            if a.dtype == np.float32:
                assert np.abs(a - b).max() <= 2**-4 * max(1, np.abs(a).max()), name
                is_changed |= (a != b).any()
        assert is_changed, name
