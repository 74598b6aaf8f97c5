"""What layers are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax.models.layers import computed_once

ONCE = worlds.jit(lambda x: jax.vjp(computed_once, x)[0])


@pytest.mark.parametrize("first", [1.5, np.nan, np.inf, -0.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_computed_once_is_unchanged_to_the_bit(dtype, first):
    """Whichever branch the first number chooses; alone and in lanes."""
    own = jnp.finfo(dtype)
    x = jnp.asarray([[first, own.max], [-own.tiny, 1 / 3]], dtype)
    np.testing.assert_array_equal(bits(ONCE(x)), bits(x))
    np.testing.assert_array_equal(bits(worlds.jit(jax.vmap(computed_once))(x)), bits(x))


def test_so_is_its_gradient():
    x, g = jnp.asarray([2.0, np.inf]), jnp.asarray([-3.0, 1 / 3])
    np.testing.assert_array_equal(jax.vjp(computed_once, x)[1](g)[0], g)
    np.testing.assert_array_equal(jax.jvp(computed_once, (x,), (g,))[1], g)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is left to XLA")
def test_xla_keeps_it_apart_in_both_directions():
    """Fused, a value takes no memory and is computed again by whatever reads it; kept apart, it is an array."""
    x = jnp.ones(4096)

    def held(of):
        return jax.jit(of).lower(x).compile().memory_analysis().temp_size_in_bytes

    def forward(keep):
        return lambda x: (keep(jnp.sin(x)) ** 2).sum()

    def backward(keep):
        return lambda x: 2 * jax.vjp(keep, x)[1](jnp.sin(x))[0]

    for direction in (forward, backward):
        assert held(direction(computed_once)) - held(direction(lambda x: x)) >= x.nbytes, direction


def bits(x):
    return np.asarray(x).view(np.uint8)
