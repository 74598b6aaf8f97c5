"""The gradient accumulated over microbatches equals that of the whole minibatch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core.types import Batch
from fedvg_jax.models import microbatch
from fedvg_jax.models import task as tasks
from fedvg_jax.models.mlp import MLP

WHOLE = tasks.classification(MLP(3, (5,)), 3, (2, 2, 3))
"""Any model in which no row depends on another."""

X = np.random.default_rng(0).integers(0, 256, (6, 2, 2, 3), np.uint8)
BATCH = Batch(jnp.asarray(X), jnp.arange(6, dtype=jnp.int32) % 3)


@pytest.fixture
def model(x64):
    return worlds.variables(task=WHOLE)


@functools.cache
def by_microbatches(max_rows):
    return microbatch.accumulate_gradients(WHOLE, max_rows)


@pytest.mark.parametrize("real", [6, 5, 3, 1, 0])
@pytest.mark.parametrize("max_rows", [1, 2, 4])
def test_loss_and_gradient_equal_those_of_the_whole_minibatch(model, max_rows, real):
    """4 does not divide 6, so microbatches have 3 rows; with 3 real rows some are partly or wholly padding."""
    mask = jnp.arange(6) < real
    actual, expected = (value_and_grad(task)(*model, BATCH, mask) for task in (by_microbatches(max_rows), WHOLE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), actual, expected)


def test_microbatch_of_padding_is_skipped():
    """This mean is 0 / 0 without real rows; for rows 3, 1 and padding, d/dw mean(w x) = 2."""

    def loss(params, stats, x, mask, train):
        return jnp.where(mask, params["w"] * x.astype(float), 0).sum() / mask.sum().astype(float), stats

    task = microbatch.accumulate_gradients(WHOLE._replace(loss=loss), 2)
    x, mask = jnp.array([3, 1, 0, 0, 0, 0]), jnp.arange(6) < 2
    gradient = jax.grad(lambda p: task.loss(p, {}, x, mask, True)[0])({"w": jnp.float32(5)})
    assert gradient["w"] == 2


def test_gradient_is_differentiable_in_both_modes(model):
    """Along a direction d: forward mode gives H d, and so does the gradient of g . d."""
    mask = jnp.arange(6) < 5
    direction = jax.tree.map(jnp.cos, model.params)

    def products(task, params):
        def gradient(params):
            return jax.grad(lambda p: task.loss(p, {}, BATCH, mask, True)[0])(params)

        def along(params):
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient(params), direction)))

        return [jax.jvp(gradient, (params,), (direction,))[1], jax.grad(along)(params)]

    run = worlds.jit(lambda params: products(by_microbatches(2), params) + products(WHOLE, params))
    *others, expected = run(model.params)
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), other, expected)


def test_loss_is_differentiable_in_forward_mode(model):
    direction = jax.tree.map(jnp.cos, model.params)

    def derivative(task, params):
        return jax.jvp(lambda p: task.loss(p, {}, BATCH, jnp.arange(6) < 5, True)[0], (params,), (direction,))

    actual, expected = worlds.jit(lambda p: [derivative(task, p) for task in (by_microbatches(2), WHOLE)])(model.params)
    np.testing.assert_allclose(actual, expected, rtol=1e-11)


def test_vmapped_clients_have_their_own_gradients(model):
    mask = jnp.arange(6) < 5
    stacked = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), model.params)

    def gradients(task, stacked):
        return jax.vmap(jax.grad(lambda p: task.loss(p, {}, BATCH, mask, True)[0]))(stacked)

    actual, expected = worlds.jit(lambda p: [gradients(task, p) for task in (by_microbatches(2), WHOLE)])(stacked)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), actual, expected)


def test_float_images_keep_their_gradient(model):
    """uint8 images have no gradient, but that of float images must not become 0."""
    x = jnp.asarray(X, jnp.float64) / 255
    task = by_microbatches(2)
    gradient = worlds.jit(jax.grad(lambda x: task.loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0]))(x)
    assert jnp.abs(gradient).reshape(6, -1).max(1).min() > 0


@functools.cache
def value_and_grad(task):
    return worlds.jit(lambda *args: jax.value_and_grad(task.loss, has_aux=True)(*args, True))
