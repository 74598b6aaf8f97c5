"""Formats of a model's arithmetic: what goes in and comes out is float32, and nearly the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.models import precision

WORLD = worlds.small()


def trained(name):
    """Loss, statistics and gradient of a batch, and what an evaluation measures."""
    task = precision.compute_in(worlds.TASK, name)
    params, stats = worlds.variables()
    batch = jax.tree.map(lambda x: jnp.asarray(x[:12]), WORLD.pool)
    mask = jnp.arange(12) < 10
    loss = jax.jit(lambda p: jax.value_and_grad(task.loss, has_aux=True)(p, stats, batch, mask, True))
    return loss(params), jax.jit(lambda p: task.measure(p, stats, batch, mask))(params)


@pytest.fixture(scope="module")
def found():
    return {name: jax.tree.map(np.asarray, trained(name)) for name in precision.NAMES}


def test_the_settings_names_are_those_of_the_module():
    assert config.PRECISIONS == precision.NAMES


@pytest.mark.parametrize("name", precision.NAMES)
def test_everything_comes_out_as_it_does_in_single_precision(found, name):
    def kind(leaf):
        return leaf.shape, leaf.dtype

    assert jax.tree.map(kind, found[name]) == jax.tree.map(kind, found["default"])


def test_on_a_cpu_single_precision_is_the_highest(found):
    jax.tree.map(np.testing.assert_array_equal, found["highest"], found["default"])


def test_bfloat16_has_eight_bits_and_is_used(found):
    """Rounding is 2^-9 of a number; a handful of products and sums in a row stay within 2^-4 of the largest entry."""
    for exact, rough in zip(jax.tree.leaves(found["default"]), jax.tree.leaves(found["bfloat16"]), strict=True):
        if exact.dtype == np.float32:
            assert np.abs(exact - rough).max() <= 2**-4 * max(1, np.abs(exact).max())
    differences = jax.tree.map(lambda a, b: bool((a != b).any()), found["default"], found["bfloat16"])
    assert any(jax.tree.leaves(differences))
