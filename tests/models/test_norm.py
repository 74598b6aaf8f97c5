"""BatchNorm: torch's update rule, and statistics without padded rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.core.types import Variables
from fedvg_jax.models.norm import BatchNorm, lone_row_is_undefined

pytestmark = pytest.mark.quick

NORM = BatchNorm()
SHAPES = pytest.mark.parametrize("shape", [(), (2, 3)], ids=["dense", "image"])


def variables(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.uniform(0.5, 2, 4))  # noqa: E731
    return {"params": {"scale": draw(), "bias": draw()}, "batch_stats": {"mean": draw(), "var": draw()}}


@functools.partial(jax.jit, static_argnames="train")
def apply(arrays, x, mask, train=True):
    """(y, new running statistics)"""
    y, new = NORM.apply(arrays, x, mask, train, mutable=["batch_stats"])
    return y, new["batch_stats"]


@worlds.jit
def values_and_gradients(arrays, x, mask):
    """((sum over the real rows of sin y, (y, new running statistics)), gradients by parameters and x)"""

    def total(arrays, x):
        y, new = apply(arrays, x, mask)
        return jnp.where(mask.reshape(-1, *[1] * (y.ndim - 1)), jnp.sin(y), 0).sum(), (y, new)

    return jax.value_and_grad(total, (0, 1), has_aux=True)(arrays, x)


def rows(n, shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(3, 2, (n, *shape, 4)))


def padded(x, n, filling):
    return jnp.concatenate([x, jnp.full((n, *x.shape[1:]), filling)]), jnp.arange(len(x) + n) < len(x)


def test_training_normalises_by_the_biased_variance_and_tracks_the_unbiased_one(x64):
    """Of 1, 2, 3, 6: mean 3, squared deviations 4 + 1 + 0 + 9 = 14, biased 14/4, unbiased 14/3.

    torch.nn.BatchNorm1d: running = 0.9 running + 0.1 batch, eps 1e-5."""
    x = jnp.array([1.0, 2.0, 3.0, 6.0])[:, None]
    arrays = {
        "params": {"scale": jnp.array([2.0]), "bias": jnp.array([5.0])},
        "batch_stats": {"mean": jnp.array([1.0]), "var": jnp.array([4.0])},
    }
    y, new = apply(arrays, x, jnp.ones(4, bool))
    np.testing.assert_allclose(y[:, 0], [5 + 2 * d / np.sqrt(14 / 4 + 1e-5) for d in (-2, -1, 0, 3)], rtol=1e-12)
    worlds.assert_close(new, {"mean": np.array([0.9 + 0.3]), "var": np.array([3.6 + 0.1 * 14 / 3])}, 1e-12)


@SHAPES
def test_evaluation_uses_the_running_statistics_and_keeps_them(x64, shape):
    arrays, x = variables(), rows(5, shape)
    y, new = apply(arrays, x, jnp.ones(5, bool), train=False)
    part = {**arrays["params"], **arrays["batch_stats"]}
    mean, var, scale, bias = (np.asarray(part[name]) for name in ("mean", "var", "scale", "bias"))
    np.testing.assert_allclose(y, (np.asarray(x) - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, new, arrays["batch_stats"])


def test_a_frozen_layer_trains_as_it_evaluates(x64):
    arrays, x, mask = variables(), rows(5, (2, 3)), jnp.ones(5, bool)
    trained = BatchNorm(is_frozen=True).apply(arrays, x, mask, True, mutable=["batch_stats"])
    expected = NORM.apply(arrays, x, mask, False), {"batch_stats": arrays["batch_stats"]}
    jax.tree.map(np.testing.assert_array_equal, trained, expected)


@pytest.mark.parametrize(("layer", "expected"), [(NORM, True), (BatchNorm(is_frozen=True), False)])
def test_a_lone_row_is_undefined_where_its_own_statistics_normalise_it(layer, expected):
    def init(key):
        drawn = layer.init(key, jnp.ones((1, 4)), jnp.ones(1, bool), False)
        return Variables(drawn["params"], drawn["batch_stats"])

    assert lone_row_is_undefined(init) is expected


@SHAPES
def test_padded_rows_change_neither_values_nor_gradients_nor_statistics(x64, shape):
    (total, outputs), (by_params, by_x) = values_and_gradients(variables(), rows(5, shape), jnp.ones(5, bool))
    actual = values_and_gradients(variables(), *padded(rows(5, shape), 3, 1e3))
    (total_p, (y, new)), (by_params_p, by_x_p) = actual
    outputs_p = y[:5], new
    worlds.assert_close((total_p, outputs_p, by_params_p, by_x_p[:5]), (total, outputs, by_params, by_x), 1e-9)
    assert not by_x_p[5:].any()


@SHAPES
def test_batch_without_real_rows_keeps_the_running_statistics_and_has_finite_gradients(shape):
    arrays = jax.tree.map(lambda x: x.astype(jnp.float32), variables())
    x, mask = rows(3, shape).astype(jnp.float32), jnp.zeros(3, bool)

    @worlds.jit
    def run(arrays, x):
        (y, new), pullback = jax.vjp(lambda arrays, x: apply(arrays, x, mask), arrays, x)
        return y, new, pullback((jnp.ones_like(y), jax.tree.map(jnp.ones_like, new)))

    y, new, gradients = run(arrays, x)
    jax.tree.map(np.testing.assert_array_equal, new, arrays["batch_stats"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, gradients)))


def test_one_row_shrinks_the_running_variance_towards_zero(x64):
    """Its variance is 0, without a division by n - 1 = 0: the running one becomes 0.9 of itself."""
    arrays, x = variables(), rows(1, ())
    y, new = apply(arrays, x, jnp.ones(1, bool))
    stats = arrays["batch_stats"]
    expected = {"mean": 0.9 * stats["mean"] + 0.1 * x[0], "var": 0.9 * stats["var"]}
    worlds.assert_close((y[0], new), (arrays["params"]["bias"], expected), 1e-12)


def test_initialisation_is_the_identity_for_any_batch():
    arrays = worlds.jit(lambda x: NORM.init(jax.random.key(0), x, jnp.ones(3, bool), True))(7 * jnp.ones((3, 4)))
    expected = {"params": {"scale": np.ones(4), "bias": np.zeros(4)}}
    expected |= {"batch_stats": {"mean": np.zeros(4), "var": np.ones(4)}}
    jax.tree.map(np.testing.assert_array_equal, arrays, expected)
