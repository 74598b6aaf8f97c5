"""Runs that start from given variables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

import fedvg_jax as fv

CONFIG = fv.Config(clients=4, rounds=1, local_epochs=1, weighting="samples", lanes="1")


def variables(seed=3):
    return fv.simulation(fv.Config(clients=4, seed=seed)).state.variables


def test_a_run_starts_from_the_given_variables_which_stay_valid():
    start = variables()
    given, own = fv.simulation(CONFIG, initial=start).state.variables, fv.simulation(CONFIG).state.variables
    worlds.assert_close(given, start, 0)
    assert np.abs(given.params["fc1"]["kernel"] - own.params["fc1"]["kernel"]).max() > 1e-3
    fv.run(CONFIG, initial=start)
    assert np.isfinite(jax.tree.leaves(start.params)[0]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v._replace(params={**v.params, "fc9": jnp.ones(1)}), "initial has a leaf 'params/fc9'"),
        (lambda v: jax.tree.map(lambda leaf: leaf[:1], v), "initial leaf 'params/classifier/bias' has shape"),
        (lambda v: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), v), "is float16; expected float32"),
        (lambda v: v.params, "initial must be Variables"),
    ],
)
def test_variables_of_another_model_are_one_line(change, message):
    with pytest.raises(fv.UsageError, match=message):
        fv.run(CONFIG, initial=change(variables()))


def test_two_sources_of_the_initial_model_are_refused(tmp_path):
    with pytest.raises(fv.UsageError, match="initial gives the initial model, and so does init"):
        fv.run(fv.Config(clients=4, rounds=1, init=str(tmp_path)), initial=variables())
