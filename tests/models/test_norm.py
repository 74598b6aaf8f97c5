"""BatchNorm: torch's update rule, and statistics without padded rows; `test_models.py` has its gradients."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core.types import Variables
from fedvg_jax.models.layers import BatchNorm, lone_row_is_undefined

pytestmark = pytest.mark.quick

NORM, FROZEN = BatchNorm(), BatchNorm(is_frozen=True)


@pytest.mark.parametrize(
    ("real", "mean", "biased", "unbiased"),
    [
        ([1.0, 2.0, 3.0, 6.0], 3, 14 / 4, 14 / 3),  # squared deviations 4 + 1 + 0 + 9 = 14
        ([7.0], 7, 0, 0),  # without a division by n - 1 = 0
    ],
)
def test_training_normalises_by_the_biased_variance_and_tracks_the_unbiased_one(
    x64, real, mean, biased, unbiased
):
    """torch.nn.BatchNorm1d: running = 0.9 running + 0.1 batch, eps 1e-5; here beside two padded rows."""
    x = jnp.array([*real, 1e3, -1e3])[:, None]
    mask = jnp.arange(len(real) + 2) < len(real)
    arrays = {
        "params": {"scale": jnp.array([2.0]), "bias": jnp.array([5.0])},
        "batch_stats": {"mean": jnp.array([1.0]), "var": jnp.array([4.0])},
    }
    y, new = NORM.apply(arrays, x, mask, True, mutable=["batch_stats"])
    expected = [5 + 2 * (value - mean) / np.sqrt(biased + 1e-5) for value in real]
    np.testing.assert_allclose(y[: len(real), 0], expected, rtol=1e-12)
    running = {"mean": np.array([0.9 + 0.1 * mean]), "var": np.array([3.6 + 0.1 * unbiased])}
    worlds.assert_close(new["batch_stats"], running, 1e-12)


@pytest.mark.parametrize(("layer", "train"), [(NORM, False), (FROZEN, False), (FROZEN, True)])
def test_running_statistics_normalise_in_evaluation_and_always_in_a_frozen_layer(x64, layer, train):
    scale, bias, mean, var = np.random.default_rng(0).uniform(0.5, 2, (4, 3))
    x = np.random.default_rng(1).normal(3, 2, (5, 2, 2, 3))
    arrays = {"params": {"scale": scale, "bias": bias}, "batch_stats": {"mean": mean, "var": var}}
    y, new = layer.apply(arrays, jnp.asarray(x), jnp.ones(5, bool), train, mutable=["batch_stats"])
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-12)
    chex.assert_trees_all_equal(new["batch_stats"], arrays["batch_stats"])


@pytest.mark.parametrize(("layer", "expected"), [(NORM, True), (FROZEN, False)])
def test_a_lone_row_is_undefined_where_its_own_statistics_normalise_it(layer, expected):
    def init(key):
        drawn = layer.init(key, jnp.ones((1, 4)), jnp.ones(1, bool), False)
        return Variables(drawn["params"], drawn["batch_stats"])

    assert lone_row_is_undefined(init) is expected
