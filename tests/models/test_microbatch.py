"""The gradient accumulated over microbatches equals that of the whole minibatch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core.types import Batch
from fedvg_jax.models import microbatch, vit
from fedvg_jax.models import task as tasks

WHOLE = tasks.classification(vit.ViT(3, patch=4, width=8, depth=1, heads=2, image_size=8), 3, (8, 8, 3))
X = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
BATCH = Batch(jnp.asarray(X), jnp.arange(6, dtype=jnp.int32) % 3)


@functools.cache
def initial_variables():
    with jax.enable_x64(False):
        return jax.tree.map(np.asarray, worlds.jit(WHOLE.init)(jax.random.key(0)))


@pytest.fixture
def model(x64):
    with jax.numpy_dtype_promotion("standard"):  # flax's LayerNorm mixes formats in double precision
        yield jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), initial_variables())


@functools.cache
def by_microbatches(max_rows):
    return microbatch.accumulate_gradients(WHOLE, max_rows)


@pytest.mark.parametrize("real", [6, 5, 3, 1, 0])
@pytest.mark.parametrize("max_rows", [1, 2, 4])
def test_loss_and_gradient_equal_those_of_the_whole_minibatch(model, max_rows, real):
    """4 does not divide 6, so microbatches have 3 rows; with 3 real rows some are partly or wholly padding."""
    mask = jnp.arange(6) < real
    found, expected = (value_and_grad(task)(*model, BATCH, mask) for task in (by_microbatches(max_rows), WHOLE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), found, expected)


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
    products = []
    for task in (by_microbatches(2), WHOLE):

        def gradient(params, task=task):
            return jax.grad(lambda p: task.loss(p, {}, BATCH, mask, True)[0])(params)

        def along(params, gradient=gradient):
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient(params), direction)))

        products.append(worlds.jit(lambda p, f=gradient: jax.jvp(f, (p,), (direction,))[1])(model.params))
        products.append(worlds.jit(jax.grad(along))(model.params))
    for other in products[:-1]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), other, products[-1])


def test_loss_is_differentiable_in_forward_mode(model):
    direction = jax.tree.map(jnp.cos, model.params)
    found, expected = (
        worlds.jit(
            lambda p, t=task: jax.jvp(lambda p: t.loss(p, {}, BATCH, jnp.arange(6) < 5, True)[0], (p,), (direction,))
        )(model.params)
        for task in (by_microbatches(2), WHOLE)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_vmapped_clients_have_their_own_gradients(model):
    mask = jnp.arange(6) < 5
    stacked = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), model.params)
    found, expected = (
        worlds.jit(jax.vmap(lambda p, t=task: jax.grad(lambda p: t.loss(p, {}, BATCH, mask, True)[0])(p)))(stacked)
        for task in (by_microbatches(2), WHOLE)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), found, expected)


def test_float_images_keep_their_gradient(model):
    """uint8 images have no gradient, but that of float images must not become 0."""
    x = jnp.asarray(X, jnp.float64) / 255
    task = by_microbatches(2)
    gradient = worlds.jit(jax.grad(lambda x: task.loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0]))(x)
    assert jnp.abs(gradient).reshape(6, -1).max(1).min() > 0


@functools.cache
def value_and_grad(task):
    return worlds.jit(lambda *args: jax.value_and_grad(task.loss, has_aux=True)(*args, True))
