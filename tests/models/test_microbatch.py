"""A gradient in chunks of rows is that of the whole minibatch."""

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


@pytest.fixture
def model(x64):
    with jax.numpy_dtype_promotion("standard"):  # flax's LayerNorm mixes formats in double precision
        variables = WHOLE.init(jax.random.key(0))
        yield jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), variables)


@pytest.mark.parametrize("real", [6, 5, 3, 1, 0])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_loss_and_gradient_are_those_of_the_whole(model, most, real):
    """4 does not divide 6, so it is 3; with 3 real rows of 6 some chunks are half empty or empty."""
    mask = jnp.arange(6) < real
    parts = microbatch.in_chunks(WHOLE, most)
    found, expected = (value_and_grad(task)(*model, BATCH, mask) for task in (parts, WHOLE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), found, expected)


def test_a_chunk_of_padding_is_not_visited():
    """A mean that is 0 / 0 without real rows: of rows 3, 1 and padding, d/dw mean(w x) = 2."""

    def loss(params, stats, x, mask, train):
        return jnp.where(mask, params["w"] * x.astype(float), 0).sum() / mask.sum().astype(float), stats

    task = microbatch.in_chunks(WHOLE._replace(loss=loss), 2)
    x, mask = jnp.array([3, 1, 0, 0, 0, 0]), jnp.arange(6) < 2
    gradient = jax.grad(lambda p: task.loss(p, {}, x, mask, True)[0])({"w": jnp.float32(5)})
    assert gradient["w"] == 2


def test_the_gradient_has_slopes_in_both_modes(model):
    """Along a direction d: forward mode's H d, and the gradient of g . d, which is H d too."""
    mask = jnp.arange(6) < 5
    direction = jax.tree.map(jnp.cos, model.params)
    slopes = []
    for task in (microbatch.in_chunks(WHOLE, 2), WHOLE):

        def gradient(params, task=task):
            return jax.grad(lambda p: task.loss(p, {}, BATCH, mask, True)[0])(params)

        def along(params, gradient=gradient):
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient(params), direction)))

        slopes.append(worlds.jit(lambda p, f=gradient: jax.jvp(f, (p,), (direction,))[1])(model.params))
        slopes.append(worlds.jit(jax.grad(along))(model.params))
    for other in slopes[:-1]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), other, slopes[-1])


def test_the_loss_has_a_slope_in_forward_mode(model):
    direction = jax.tree.map(jnp.cos, model.params)
    found, expected = (
        worlds.jit(
            lambda p, t=task: jax.jvp(lambda p: t.loss(p, {}, BATCH, jnp.arange(6) < 5, True)[0], (p,), (direction,))
        )(model.params)
        for task in (microbatch.in_chunks(WHOLE, 2), WHOLE)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_lanes_are_clients(model):
    mask = jnp.arange(6) < 5
    stacked = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), model.params)
    found, expected = (
        worlds.jit(jax.vmap(lambda p, t=task: jax.grad(lambda p: t.loss(p, {}, BATCH, mask, True)[0])(p)))(stacked)
        for task in (microbatch.in_chunks(WHOLE, 2), WHOLE)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), found, expected)


def test_images_of_numbers_keep_their_gradient(model):
    """A gradient with respect to bytes there is none, but of numbers it must not become 0."""
    x = jnp.asarray(X, jnp.float64) / 255
    task = microbatch.in_chunks(WHOLE, 2)
    slope = jax.grad(lambda x: task.loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0])(x)
    assert jnp.abs(slope).reshape(6, -1).max(1).min() > 0


def value_and_grad(task):
    return worlds.jit(lambda *args: jax.value_and_grad(task.loss, has_aux=True)(*args, True))
