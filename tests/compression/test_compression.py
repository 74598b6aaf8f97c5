"""Compressions of one update against float64 oracles, and their laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax import compression

RNG = np.random.default_rng(0)
DELTA = {"a": RNG.normal(size=(3, 4)), "b": {"w": RNG.normal(size=5)}, "c": np.zeros(2)}
ERROR = jax.tree.map(lambda x: RNG.normal(size=x.shape), DELTA)
SIZE = 19


def flat(pytree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(pytree)])


def apply(send, state=()):
    return worlds.jit(functools.partial(send.apply, {}))(jax.random.key(0), DELTA, state)


@pytest.mark.parametrize("fraction", [1e-6, 0.3, 1.0])
def test_top_k_equals_the_oracle(x64, fraction):
    """The k entries of delta + e with the largest absolute value, wherever they are; e keeps the others."""
    total = flat(DELTA) + flat(ERROR)
    chosen = np.argsort(-np.abs(total))[: max(1, round(fraction * SIZE))]
    expected = np.zeros(SIZE)
    expected[chosen] = total[chosen]
    arrived, error = apply(compression.top_k(fraction), state=ERROR)
    np.testing.assert_array_equal(flat(arrived), expected)
    np.testing.assert_array_equal(flat(error), total - expected)
    assert compression.top_k(fraction).num_bytes(DELTA) == len(chosen) * (8 + 4)


@pytest.mark.parametrize("levels", [1, 4, 255])
def test_qsgd_equals_the_oracle(x64, levels):
    """With the same uniform numbers: an entry is rounded up where they are below the fractional part."""
    arrived, state = apply(compression.qsgd(levels))
    key = jax.random.key(0)
    bits = 1 + int(np.ceil(np.log2(levels + 1)))
    leaves = zip(jax.tree.leaves(DELTA), jax.tree.leaves(arrived), strict=True)
    for number, (v, q) in enumerate(leaves):
        u = np.asarray(jax.random.uniform(jax.random.fold_in(key, number), v.shape, np.float64))
        norm = np.sqrt((v**2).sum())
        scaled = levels * np.abs(v) / max(norm, 1e-300)
        below = np.floor(scaled)
        expected = norm * np.sign(v) * (below + (u < scaled - below)) / levels
        np.testing.assert_allclose(q, expected, rtol=1e-12, atol=1e-300)
    assert state == ()
    assert compression.qsgd(levels).num_bytes(DELTA) == int(np.ceil(SIZE * bits / 8)) + 3 * 8


def test_qsgd_is_unbiased(x64):
    """A rounding of one entry has variance at most (||v|| / 2 s)^2, so a mean of 4000 is within 5 deviations of it."""
    send = compression.qsgd(2)
    keys = jax.random.split(jax.random.key(1), 4000)
    delta = jax.tree.map(jnp.asarray, DELTA)
    drawn = worlds.jit(jax.vmap(lambda key: send.apply({}, key, delta, ())[0]))(keys)
    for v, q in zip(jax.tree.leaves(DELTA), jax.tree.leaves(drawn), strict=True):
        assert np.abs(q.mean(0) - v).max() <= 5 * np.sqrt((v**2).sum()) / 4 / np.sqrt(4000)


def test_the_derivative_of_qsgd_is_that_of_its_mean(x64):
    send = compression.qsgd(1)
    slope = worlds.jit(jax.jacobian(lambda v: send.apply({}, jax.random.key(0), v, ())[0]))(
        DELTA["b"]["w"]
    )
    np.testing.assert_array_equal(slope, np.eye(5))
