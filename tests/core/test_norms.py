"""The spectral norm is numpy's and torch's, and its gradient is u v'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core import norms
from fedvg_jax.host import hardware as hw

pytestmark = pytest.mark.quick

spectral = worlds.jit(norms.spectral)
HARDWARE = hw.Hardware("cpu", "cpu", num_devices=1, cores=1, memory_bytes=None)


def drawn(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("shape", [(3, 2), (2, 5), (1, 7), (3, 3, 4, 5)], ids=str)
def test_the_spectral_norm_is_the_largest_singular_value(x64, shape):
    x = drawn(shape)
    expected = np.linalg.svd(x.reshape(-1, shape[-1]), compute_uv=False)[0]
    np.testing.assert_allclose(spectral(jnp.asarray(x)), expected, rtol=1e-13)


@pytest.mark.parametrize("platform", [hw.CPU, hw.ACCELERATOR], ids=["cpu", "accelerator"])
def test_norms_of_half_precision_are_in_single_precision(platform, monkeypatch):
    """Their sums would overflow, or stall at half of it."""
    monkeypatch.setattr(hw, "choices", lambda: platform)
    tensors = [jnp.full((400, 500), 0.5, name) for name in ("float16", "bfloat16")]
    for norm, expected in (("l1", 1e5), ("l2", 50000**0.5), ("spectral", 50000**0.5)):
        for of_tensor in worlds.jit(norms.tensor_norms(norms.BY_NAME[norm]))(tensors):
            assert of_tensor.dtype == jnp.float32
            np.testing.assert_allclose(of_tensor, expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e30])
def test_the_spectral_norm_takes_tiny_and_huge_entries(size):
    """Their squares are not numbers of single precision."""
    x = jnp.asarray(size * drawn((4, 3)), jnp.float32)
    np.testing.assert_allclose(spectral(x), np.linalg.norm(np.asarray(x, float), 2), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (3, 3, 4, 5)], ids=str)
def test_the_spectral_norm_s_gradient_equals_finite_differences(x64, shape):
    """(f(x + h d) - f(x - h d)) / 2h = f'(x) d + O(h^2), in forward and in reverse mode."""
    x = drawn(shape)
    d = drawn(shape, 1)
    h = 1e-5

    @worlds.jit
    def both(x, d):
        value, pushed = jax.jvp(norms.spectral, (x,), (d,))
        return value, pushed, (jax.grad(norms.spectral)(x) * d).sum()

    difference = (both(x + h * d, d)[0] - both(x - h * d, d)[0]) / (2 * h)
    np.testing.assert_allclose(both(x, d)[1:], 2 * [difference], rtol=1e-7, atol=1e-7)


def test_the_gradient_at_zero_is_zero_also_among_others_in_a_vmap():
    both = jnp.stack([jnp.zeros((3, 2)), jnp.ones((3, 2))])
    gradients = worlds.jit(jax.vmap(jax.grad(norms.spectral)))(both)
    np.testing.assert_allclose(gradients, both * 6**-0.5, rtol=1e-6)


def test_a_vector_has_spectral_norm_0_and_its_l2_norm_in_the_published_code():
    x = jnp.array([3.0, 4.0])
    spectral_l2 = worlds.jit(norms.spectral_l2)
    assert spectral(x) == 0 and spectral_l2(x) == 5
    matrix = jnp.asarray(drawn((4, 3)))
    assert spectral_l2(matrix) == spectral(matrix)


def test_the_joined_spectral_norm_is_that_of_a_block_diagonal_matrix(x64):
    a = drawn((3, 2))
    b = drawn((2, 4), 1)
    whole = np.block([[a, np.zeros((3, 4))], [np.zeros((2, 2)), b]])
    joined = worlds.jit(
        lambda *parts: norms.JOINED["spectral"](jnp.stack([norms.spectral(x) for x in parts]))
    )(a, b)
    np.testing.assert_allclose(joined, np.linalg.norm(whole, 2), rtol=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_segmented_norms_and_their_gradients_equal_those_by_tensor(x64, norm):
    """Of a tensor with NaN, the norm is NaN; of one of zeros, it is 0."""
    tensors = [drawn(3), drawn((40, 60)), np.zeros((2, 2)), np.array([1.0, np.nan])]

    def values_and_gradients(platform):
        def total(tensors):
            with hw.assumed(HARDWARE._replace(platform=platform)):
                values = norms.tensor_norms(norms.BY_NAME[norm])(tensors)
            return sum(values), values

        (_, values), gradients = worlds.jit(jax.value_and_grad(total, has_aux=True))(tensors)
        return values, gradients

    one_by_one, segmented = map(values_and_gradients, ("cpu", "gpu"))
    worlds.assert_close(segmented, one_by_one, 1e-13)
    *_, zero, bad = segmented[0]
    assert zero == 0 and np.isnan(bad)
