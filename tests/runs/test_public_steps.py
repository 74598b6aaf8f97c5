"""For scripts: given initial variables, `sim.step`, whose loop is a run, and `sim.validation_loss`, as in records."""

import jax
import numpy as np
from support import linear, worlds

import fedvg_jax as fv


def test_a_loop_over_steps_equals_a_run():
    config = fv.Config(
        algorithm="scaffold",
        rounds=3,
        clients=4,
        eval_every=1,
        weighting="samples",
    )
    run, sim = fv.run(config, **linear.GIVEN), fv.simulation(config, **linear.GIVEN)
    state = sim.state
    for record in run.records:
        state, metrics = sim.step(state, record["round"] - 1)
        np.testing.assert_array_equal(metrics.weights, np.float32(record["weights"]))
        np.testing.assert_allclose(sim.validation_loss(state), record["val_loss"], rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state.variables, run.variables)
    assert int(sim.state.round) == 0  # it is not donated


def test_the_validation_loss_has_the_gradient_of_a_mean_over_rows():
    task = fv.models.classification(fv.models.MLP(10, hidden=()), 10, (8, 8, 1))
    sim = fv.simulation(fv.Config(clients=4), task=task)
    params = jax.tree.map(lambda p: p + 0.01, sim.state.variables.params)
    gradient = jax.grad(lambda p: sim.validation_loss(fv.Variables(p, {})))(params)
    _, ahead = jax.jvp(lambda p: sim.validation_loss(fv.Variables(p, {})), (params,), (gradient,))
    rows = fv.tree.real_rows(sim.data.val)
    batch, mask = fv.tree.gather(sim.data.pool, rows)
    expected = jax.grad(lambda p: sim.task.loss(p, {}, batch, mask, False)[0])(params)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(
        ahead, sum(float((s * s).sum()) for s in jax.tree.leaves(gradient)), rtol=1e-4
    )


# --- runs that start from given variables

CONFIG = fv.Config(clients=4, rounds=1, local_epochs=1, weighting="samples", lanes="1")


def variables(seed=3):
    return fv.simulation(fv.Config(clients=4, seed=seed)).state.variables


def test_a_run_starts_from_the_given_variables_which_stay_valid():
    start = variables()
    given, own = (
        fv.simulation(CONFIG, initial=start).state.variables,
        fv.simulation(CONFIG).state.variables,
    )
    worlds.assert_close(given, start, 0)
    assert np.abs(given.params["fc1"]["kernel"] - own.params["fc1"]["kernel"]).max() > 1e-3
    fv.run(CONFIG, initial=start)
    assert np.isfinite(jax.tree.leaves(start.params)[0]).all()
