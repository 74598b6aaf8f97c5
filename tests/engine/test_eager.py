"""Every function takes Python's and NumPy's numbers in place of JAX's, without jit."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds
from support.cases import naming

import fedvg_jax
from fedvg_jax.core import groups, tree
from fedvg_jax.weightings import family


def test_whole_numbers_inside_jit_take_the_model_s_dtype():
    arrays = jax.jit(lambda hyper: tree.arrays(hyper, jnp.float32))({"lr": 1, "rule": jnp.int32(1)})
    assert (arrays["lr"].dtype, arrays["rule"].dtype) == (jnp.float32, jnp.int32)


# --- half precision

WEIGH = {
    "inverse_norm_weights": fedvg_jax.inverse_norm_weights,
    "generalised_weights": family.generalised_weights,
}
NORMS = {
    "one is 0": [0.0, 1.0, 3.0],
    "all are 0": [0.0, 0.0, 0.0],
    "tiny": [1e-7, 2e-7, 4e-7],  # float16 has nothing but multiples of 6e-8 there
    "huge": [6e4, 3e4, 6e4],
}


@functools.cache
def every_weighting():
    """norms -> the weights of all functions and granularities, one program."""
    cases = list(itertools.product(WEIGH, groups.BY_NAME))
    return worlds.jit(
        lambda norms: {case: WEIGH[case[0]](norms, granularity=case[1]) for case in cases}
    )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_norms_give_the_weights_of_the_same_norms_in_single_precision(dtype):
    for case, values in NORMS.items():
        norms = {"a": {"w": np.asarray(values, dtype)}, "b": {"w": np.asarray(values, dtype)}}
        weights, expected = (
            every_weighting()(x)
            for x in (norms, jax.tree.map(lambda x: x.astype(np.float32), norms))
        )
        with naming(case):
            assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {jnp.dtype(dtype)}
            tolerance = float(jnp.finfo(dtype).eps)
            worlds.assert_close(
                jax.tree.map(lambda x: np.asarray(x, np.float32), weights), expected, tolerance
            )
