"""A client's own model is read from the checkpoint, under every algorithm, and keeping it changes no round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from support.small_sweeps import timeless
from test_client_models import OWN, SMALL

import fedvg_jax as fv
from fedvg_jax.core import tree


def run(callbacks=(), **settings):
    return fv.run(fv.Config(**SMALL | settings), **OWN, callbacks=callbacks)


def test_kept_models_are_those_that_were_averaged_and_no_round_changes(tmp_path):
    """theta = sum_k s_k theta_k over the last cohort."""
    settings = {"clients": 6, "algorithm": "moon"}
    plain = run(**settings)
    history = run(**settings, placement="host", record="client_models", out=tmp_path / "run")
    assert timeless(history.records) == timeless(plain.records)
    jax.tree.map(np.testing.assert_array_equal, history.variables, plain.variables)
    last, loaded = history.records[-1], fv.History.load(history.folder)
    parts = [
        jax.tree.map(lambda x, s=s: s * x, loaded.client_variables(k).params)
        for k, s in zip(last["clients"], last["weights"], strict=True)
    ]
    mean = jax.tree.map(lambda *xs: sum(xs), *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), mean, history.variables.params)
    with pytest.raises(fv.UsageError, match=r"\A[^\n]*there is no client 6[^\n]*\Z"):
        history.client_variables(6)


@pytest.mark.parametrize("settings", [{"method": "ditto"}, {"local": "^classifier/"}], ids=str)
def test_models_of_clients_are_their_personal_ones_or_have_their_own_tensors(tmp_path, settings):
    states = []
    history = run(
        [lambda record, state: states.append(jax.tree.map(jnp.copy, state))], out=tmp_path / "run", **settings
    )
    state = states[-1]
    for k in range(4):
        own = {
            path.removeprefix("params/"): leaf for path, leaf in tree.by_path(tree.take(state.clients.local, k)).items()
        }
        expected = {**tree.by_path(state.variables.params), **own}
        got = tree.by_path(history.client_variables(k).params)
        assert got.keys() == expected.keys()
        for path, leaf in got.items():
            np.testing.assert_array_equal(leaf, expected[path])


def test_the_model_of_a_task_of_one_s_own_is_exported_by_path(tmp_path):
    history = run(rounds=1, export=tmp_path / "m.safetensors")
    written = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    expected = tree.by_path(history.variables)
    assert written.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(written[path], leaf)
