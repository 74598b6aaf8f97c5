"""The fusion barrier changes no number and survives compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.host import hardware
from fedvg_jax.models.layers import fusion_barrier

BARRIER = worlds.jit(lambda x: jax.vjp(fusion_barrier, x)[0])


@pytest.mark.parametrize("first", [1.5, np.nan])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_fusion_barrier_returns_its_input_bit_for_bit(dtype, first):
    """For either branch that the first number selects; alone and under vmap."""
    own = jnp.finfo(dtype)
    x = jnp.asarray([[first, own.max], [-own.tiny, 1 / 3]], dtype)
    np.testing.assert_array_equal(bits(BARRIER(x)), bits(x))
    np.testing.assert_array_equal(bits(worlds.jit(jax.vmap(fusion_barrier))(x)), bits(x))
    np.testing.assert_array_equal(bits(jax.vjp(fusion_barrier, x)[1](x)[0]), bits(x))


@pytest.mark.skipif(
    not hardware.current().is_cpu, reason="the barrier is for CPUs; accelerators get none"
)
def test_fusion_barrier_survives_compilation_in_both_directions():
    """A fused value takes no memory and is computed again by each of its readers; behind a barrier it is an array."""
    x = jnp.ones(4096)

    def held(of):
        return jax.jit(of).lower(x).compile().memory_analysis().temp_size_in_bytes

    def forward(keep):
        return lambda x: (keep(jnp.sin(x)) ** 2).sum()

    def backward(keep):
        return lambda x: 2 * jax.vjp(keep, x)[1](jnp.sin(x))[0]

    for direction in (forward, backward):
        assert held(direction(fusion_barrier)) - held(direction(lambda x: x)) >= x.nbytes, direction


def bits(x):
    return np.asarray(x).view(np.uint8)
