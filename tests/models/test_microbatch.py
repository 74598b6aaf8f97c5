"""The gradient accumulated over microbatches equals that of the whole minibatch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core.types import Batch
from fedvg_jax.models import task as tasks
from fedvg_jax.models import transforms
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
    return transforms.accumulate_gradients(WHOLE, max_rows)


@pytest.mark.parametrize("real", [6, 3, 0])
@pytest.mark.parametrize("max_rows", [1, 4])
def test_loss_and_gradient_equal_those_of_the_whole_minibatch(model, max_rows, real):
    """4 does not divide 6, so microbatches have 3 rows; with 3 real rows some are partly or wholly padding."""
    mask = jnp.arange(6) < real
    actual, expected = (value_and_grad(task)(*model, BATCH, mask) for task in (by_microbatches(max_rows), WHOLE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), actual, expected)


def test_microbatch_of_padding_is_skipped():
    """This mean is 0 / 0 without real rows; for rows 3, 1 and padding, d/dw mean(w x) = 2."""

    def loss(params, stats, x, mask, train):
        return jnp.where(mask, params["w"] * x.astype(float), 0).sum() / mask.sum().astype(float), stats

    task = transforms.accumulate_gradients(WHOLE._replace(loss=loss), 2)
    x, mask = jnp.array([3, 1, 0, 0, 0, 0]), jnp.arange(6) < 2
    gradient = jax.grad(lambda p: task.loss(p, {}, x, mask, True)[0])({"w": jnp.float32(5)})
    assert gradient["w"] == 2


def along(params):
    return jax.tree.map(jnp.cos, params)


def projected(loss, params):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.grad(loss)(params), along(params))))


DERIVED = {
    "Hessian product, forward": lambda f, p: jax.jvp(jax.grad(f), (p,), (along(p),)),
    "Hessian product, reverse": lambda f, p: jax.grad(lambda p: projected(f, p))(p),
    "gradients of clients": lambda f, p: jax.vmap(jax.grad(f))(jax.tree.map(lambda x: jnp.stack([x, 2 * x]), p)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_equal_those_of_the_whole_minibatch(model, name):
    def of(task, params):
        return DERIVED[name](lambda p: task.loss(p, {}, BATCH, jnp.arange(6) < 5, True)[0], params)

    actual, expected = worlds.jit(lambda params: [of(task, params) for task in (by_microbatches(2), WHOLE)])(
        model.params
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), actual, expected)


def test_float_images_keep_their_gradient(model):
    """uint8 images have no gradient, but that of float images must not become 0."""
    x = jnp.asarray(X, jnp.float64) / 255
    task = by_microbatches(2)
    gradient = worlds.jit(jax.grad(lambda x: task.loss(*model, Batch(x, BATCH.y), jnp.ones(6, bool), True)[0]))(x)
    assert jnp.abs(gradient).reshape(6, -1).max(1).min() > 0


@functools.cache
def value_and_grad(task):
    return worlds.jit(lambda *args: jax.value_and_grad(task.loss, has_aux=True)(*args, True))
