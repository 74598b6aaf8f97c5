"""Sums over clients and what they tell: against the equation, and wherever one bad number stands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import programs, worlds

from fedvg_jax.core import tree
from fedvg_jax.host import hardware as hw

ONE_CORE = hw.Hardware("cpu", "cpu", num_devices=1, cores=1, memory_bytes=None)


@pytest.mark.parametrize(
    ("platform", "cohort"), [("cpu", 1), ("cpu", 37), ("gpu", 37), ("tpu", 37)]
)
def test_a_weighted_sum_has_the_value_and_derivatives_of_its_equation(platform, cohort, x64):
    """A CPU computes it in a loop, and an accelerator as one product."""
    rng = np.random.default_rng(cohort)
    arguments = [rng.normal(size=shape) for shape in ((cohort,), (cohort, 2, 3), (2, 3))]

    def equation(w, x, o):
        return jnp.einsum("k,kij->ij", w, x - o[None])

    @functools.partial(worlds.jit, static_argnums=0)
    def value_and_derivatives(f, *arguments):
        reverse = jax.jacrev(f, (0, 1, 2))
        forward = jax.jacfwd(f, (0, 1, 2))
        return f(*arguments), reverse(*arguments), forward(*arguments)

    weighted_sum = functools.partial(tree.weighted_sum)  # which JAX traces anew
    with hw.assumed(ONE_CORE._replace(platform=platform)):
        actual = value_and_derivatives(weighted_sum, *arguments)
        used = programs.primitives(weighted_sum, *arguments)
    worlds.assert_close(actual, value_and_derivatives(equation, *arguments), 1e-12)
    assert bool(used & {"while", "scan"}) == (platform == "cpu")


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_mean_of_many_models_of_half_precision_loses_none(platform):
    """A sum in bfloat16 would stall at half of it."""
    models = jnp.ones((1000, 1), jnp.bfloat16)
    origin = jnp.zeros(1, jnp.bfloat16)
    with hw.assumed(ONE_CORE._replace(platform=platform)):
        total = tree.weighted_sum(jnp.full(1000, 1e-3), models, origin)
    assert (total.dtype, float(total[0])) == (jnp.bfloat16, 1.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("size", [1, 1000])
def test_one_nonfinite_number_marks_its_client_at_any_position(size, bad):
    leaf = np.random.default_rng(0).normal(size=(4, size)).astype(np.float32)
    leaf[[1, 2, 3], [0, size // 2, size - 1]] = bad
    flags = worlds.jit(tree.is_finite)({"a": leaf, "none": np.zeros((4, 0))})
    assert flags.tolist() == [True, False, False, False]
