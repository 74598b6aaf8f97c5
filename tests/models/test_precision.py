"""Number formats of a model's arithmetic: inputs and outputs stay float32, and results stay close."""

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import worlds

from fedvg_jax.models import transforms

WORLD = worlds.small()


def functions(name):
    """Returns functions of the parameters: the gradient of a batch with its statistics, outputs, and sums."""
    task = transforms.compute_in(worlds.TASK, name)
    _, stats = worlds.variables()
    batch = jax.tree.map(lambda x: jnp.asarray(x[:12]), WORLD.pool)
    mask = jnp.arange(12) < 10
    return {
        "gradient": lambda params: jax.value_and_grad(task.loss, has_aux=True)(params, stats, batch, mask, True),
        "predict": lambda params: task.predict(params, stats, batch),
        "measure": lambda params: task.measure(params, stats, batch, mask),
    }


@pytest.fixture(scope="module")
def results():
    params, _ = worlds.variables()

    def results_of(name):
        return worlds.jit(lambda params: {part: f(params) for part, f in functions(name).items()})(params)

    return {name: jax.tree.map(np.asarray, results_of(name)) for name in transforms.NAMES}


@pytest.mark.parametrize("name", transforms.NAMES)
def test_results_have_the_shapes_and_dtypes_of_float32(results, name):
    def shape_and_dtype(leaf):
        return leaf.shape, leaf.dtype

    assert jax.tree.map(shape_and_dtype, results[name]) == jax.tree.map(shape_and_dtype, results["default"])


def test_default_equals_highest_on_a_cpu(results):
    jax.tree.map(np.testing.assert_array_equal, results["highest"], results["default"])


@pytest.mark.parametrize("part", ["gradient", "predict", "measure"])
def test_highest_asks_for_full_precision_in_every_product(part):
    """A CPU computes the same either way."""
    found = programs.equations(functions("highest")[part], worlds.variables().params)
    precisions = [equation.params["precision"] for equation in found if equation.primitive.name == "dot_general"]
    assert len(precisions) >= 2 and {*precisions} == {(jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}


def test_bfloat16_changes_results_within_its_rounding(results):
    """A number is rounded by 2^-9 of itself; a few operations in a row stay within 2^-4 of the largest entry."""
    for exact, rough in zip(jax.tree.leaves(results["default"]), jax.tree.leaves(results["bfloat16"]), strict=True):
        if exact.dtype == np.float32:
            assert np.abs(exact - rough).max() <= 2**-4 * max(1, np.abs(exact).max())
    differ = jax.tree.map(lambda a, b: bool((a != b).any()), results["default"], results["bfloat16"])
    (_, gradients), sums = differ["gradient"], differ["measure"]
    assert all(jax.tree.leaves(gradients)) and differ["predict"] and sums["loss"]
