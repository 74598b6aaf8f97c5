"""Number formats of a model's arithmetic: inputs and outputs stay float32, and results stay close."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.engine import schedule
from fedvg_jax.models import precision
from fedvg_jax.runs import simulation
from fedvg_jax.views import rounding

WORLD = worlds.small()


def trained(name):
    """Returns loss, statistics and gradient of a batch, and the sums of an evaluation."""
    task = precision.compute_in(worlds.TASK, name)
    params, stats = worlds.variables()
    batch = jax.tree.map(lambda x: jnp.asarray(x[:12]), WORLD.pool)
    mask = jnp.arange(12) < 10
    loss = jax.jit(lambda p: jax.value_and_grad(task.loss, has_aux=True)(p, stats, batch, mask, True))
    return loss(params), jax.jit(lambda p: task.measure(p, stats, batch, mask))(params)


@pytest.fixture(scope="module")
def found():
    return {name: jax.tree.map(np.asarray, trained(name)) for name in precision.NAMES}


def test_allowed_settings_are_the_names_of_the_module():
    assert config.PRECISIONS == precision.NAMES


@pytest.mark.parametrize("name", precision.NAMES)
def test_results_have_the_shapes_and_dtypes_of_float32(found, name):
    def shape_and_dtype(leaf):
        return leaf.shape, leaf.dtype

    assert jax.tree.map(shape_and_dtype, found[name]) == jax.tree.map(shape_and_dtype, found["default"])


def test_default_equals_highest_on_a_cpu(found):
    jax.tree.map(np.testing.assert_array_equal, found["highest"], found["default"])


def test_bfloat16_changes_results_within_its_rounding(found):
    """A number is rounded by 2^-9 of itself; a few operations in a row stay within 2^-4 of the largest entry."""
    for exact, rough in zip(jax.tree.leaves(found["default"]), jax.tree.leaves(found["bfloat16"]), strict=True):
        if exact.dtype == np.float32:
            assert np.abs(exact - rough).max() <= 2**-4 * max(1, np.abs(exact).max())
    differences = jax.tree.map(lambda a, b: bool((a != b).any()), found["default"], found["bfloat16"])
    assert any(jax.tree.leaves(differences))


@pytest.fixture(scope="module")
def simulations():
    settings = config.Config(model="mlp", clients=4, join_ratio=0.75, alpha=1.0, rounds=1, local_epochs=1)
    return {name: simulation.simulation(replace(settings, precision=name)) for name in ("bfloat16", "highest")}


def test_rounding_compares_weights_and_step_of_the_first_round(simulations):
    found = rounding.compare(*simulations.values())
    (narrow, first), (wide, second) = map(one_round, simulations.values())
    start = flat(simulations["highest"].state.variables.params)
    assert found.weights == pytest.approx(np.abs(first - second).max(), rel=1e-6)
    assert found.mean_weight == 1 / 3
    assert found.step == pytest.approx(np.linalg.norm(narrow - wide) / np.linalg.norm(wide - start), rel=1e-4)
    assert 0 < found.weights < 2**-7 and 0 < found.step < 2**-4


def one_round(sim):
    """Returns the global model after the first round and its weights."""
    rounds = schedule.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    state, metrics = sim.chunk(jax.tree.map(jnp.copy, sim.state), np.int32(1), rounds, sim.data, sim.hyper)
    return flat(state.variables.params), np.asarray(metrics.weights[0])


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def test_float32_has_no_rounding_against_itself(simulations):
    exact = simulations["highest"]
    assert rounding.compare(exact, exact)[::2] == (0, 0)
    assert [rounding.is_float32(sim.config) for sim in simulations.values()] == [False, True]
    assert rounding.in_float32(simulations["bfloat16"]).config == exact.config
