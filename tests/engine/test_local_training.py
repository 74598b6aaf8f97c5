"""A local step updates a client's model in place, and the operation behind that changes no number."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.engine.local_training import after_all
from fedvg_jax.runs.assemble import simulation

PARAMS = {"w": jnp.array([-0.0, 0.0, 2e-38, np.inf]), "empty": jnp.zeros((2, 0)), "b": jnp.float32(-3)}  # fmt: skip


@pytest.mark.parametrize("value", [0.0, -0.0, 3.4e38, -7.0, np.inf, -np.inf])
def test_parameters_after_all_gradients_are_the_same_bits(value):
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), PARAMS)
    after = jax.jit(after_all)(grads, PARAMS)
    for name, leaf in PARAMS.items():
        assert np.asarray(after[name]).tobytes() == np.asarray(leaf).tobytes(), name


def test_parameters_after_all_gradients_depend_on_no_gradient_in_derivatives():
    grads = {"w": jnp.array([2.0, 3.0])}
    by_grads, by_params = jax.jacrev(lambda g, p: after_all(g, p)["w"], (0, 1))(grads, grads)
    np.testing.assert_array_equal(by_grads["w"], np.zeros((2, 2)))
    np.testing.assert_array_equal(by_params["w"], np.eye(2))


def test_a_local_step_copies_no_weights():
    """Of the second layer's [200, 200] the one copy is that of theta_g with which a client starts."""
    sim = fv.simulation(fv.Config(clients=4, model="mlp", lanes="1", devices="1"))
    text = simulation.trace_chunk(sim).lower().compile().as_text()
    assert len(re.findall(r"f32\[200,200\]\S* copy\(", text)) == 1
