"""Runs with differential privacy: epsilon against the library, resuming, trained parts, and what is refused."""

import dataclasses
import functools
import types

import dp_accounting
import numpy as np
import pytest
from support import resolved, worlds
from support.cases import naming
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.core import tree
from fedvg_jax.engine import privacy
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import privacy as accounts

GIVEN = {
    "data": worlds.images(120),
    "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1)),
}
CONFIG = fv.Config(
    clients=4, rounds=3, local_epochs=1, alpha=10.0, eval_every=1, weighting="uniform", train="^classifier/",
    dp={"clip": 0.5, "noise_multiplier": 1.5},
)  # fmt: skip
DELTA = CONFIG.dp.delta


def by_hand(event, rounds):
    accountant = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    return accountant.compose(event, rounds).get_epsilon(DELTA)


def epsilon(rounds, own_reads=None, **settings):
    config = dataclasses.replace(CONFIG, **settings)
    hyper = {"dp.noise_multiplier": np.float32(config.dp.noise_multiplier)}
    experiment = resolved.experiment(config)
    private = experiment.privacy
    if own_reads is not None:
        private = private._replace(reads_all_clients=own_reads)
    return accounts.make_account(private, experiment.cohorts, hyper).epsilon(rounds)


def test_neighbours_replace_one_client():
    """Of noise z times what a replacement changes, the divergence of order a is a / (2 z^2): the library must not
    count a replacement as twice that. Sampling lowers it."""
    orders, everybody = accounts._divergences(1.5, 4, 4)
    np.testing.assert_allclose(everybody, orders / (2 * 1.5**2), rtol=1e-12)
    sampled = accounts._divergences(1.5, 4, 2)[1]
    assert (sampled <= everybody).all() and (sampled < everybody).any()


def test_epsilon_is_that_of_the_library():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    sampled = by_hand(dp_accounting.SampledWithoutReplacementDpEvent(4, 2, gaussian), 3)
    everybody = by_hand(gaussian, 3)
    assert sampled < everybody
    external = {"validation": {"source": "npz"}}
    assert epsilon(3, own_reads=False) == pytest.approx(sampled, rel=1e-12)
    for name in ("uniform", "native", "samples+uniform"):
        assert epsilon(3, weighting=name) == pytest.approx(sampled, rel=1e-12)
    assert epsilon(3, weighting="fedvg", **external) == pytest.approx(sampled, rel=1e-12)
    # D_val has rows of all clients: who is not sampled moves the weights, too
    for settings in ({"weighting": "samples+fedvg"}, {"own_reads": True}, {"join_ratio": 1.0}):
        assert epsilon(3, **settings) == pytest.approx(everybody, rel=1e-12)
    # with little noise, the library's bound of sampled cohorts exceeds that of all clients at some orders
    little = dp_accounting.GaussianDpEvent(np.float32(0.3))  # as the rounds have it
    assert epsilon(3, dp={"clip": 1.0, "noise_multiplier": 0.3}) <= by_hand(little, 3)


@pytest.mark.parametrize(
    ("settings", "own", "bound"),
    [
        ({}, None, privacy.fixed),
        ({"weighting": "native"}, None, privacy.modelwise),
        ({"weighting": "samples+uniform"}, None, privacy.modelwise),
        ({"weighting": "fedvg"}, None, privacy.modelwise),
        ({"weighting": "fedvg", "fedvg": {"granularity": "blockwise"}}, None, privacy.tensorwise),
        (
            {"weighting": "samples+fedvg", "fedvg": {"granularity": "layerwise"}},
            None,
            privacy.tensorwise,
        ),
        ({}, fv.weightings.uniform(), privacy.tensorwise),
        ({"dp": {}}, None, None),
    ],
)
def test_every_weighting_has_its_bound(settings, own, bound):
    config = dataclasses.replace(CONFIG, **settings)
    assert resolve.method.make_method(config, Custom(weighting=own)).sensitivity is bound


def test_a_resumed_run_goes_on_with_its_noise_and_its_epsilon(tmp_path):
    """Noise is added to the trained part alone."""
    whole = fv.run(CONFIG, **GIVEN)
    fv.run(dataclasses.replace(CONFIG, rounds=1, out=tmp_path), **GIVEN)
    resumed = fv.run(dataclasses.replace(CONFIG, resume=str(tmp_path)), **GIVEN)
    assert_equal_runs(resumed, whole)
    expected = [epsilon(rounds) for rounds in (1, 2, 3)]
    assert epsilons(whole) == pytest.approx(expected, rel=1e-8)
    assert resumed.summary["epsilon"] == epsilons(whole)[-1]
    assert resumed.summary["delta"] == DELTA
    sim = fv.simulation(CONFIG, **GIVEN)
    start, end = (tree.by_path(v.params) for v in (sim.whole(sim.state.variables), whole.variables))
    for path, leaf in start.items():
        assert (leaf != end[path]).any() == path.startswith("classifier/")


def epsilons(history):
    return [record.get("epsilon") for record in history.records]


def test_a_run_that_starts_from_a_run_or_a_given_model_has_no_epsilon_and_says_so(tmp_path, caplog):
    first = fv.run(dataclasses.replace(CONFIG, train="", out=tmp_path), **GIVEN)
    config = dataclasses.replace(CONFIG, train="", rounds=1)
    for init, initial in ((tmp_path, None), (None, first.variables)):
        caplog.clear()
        history = fv.run(dataclasses.replace(config, init=init), **GIVEN, initial=initial)
        assert not any(epsilons(history)) and "epsilon" not in history.summary
        assert "no epsilon" in caplog.text


def test_a_custom_weighting_hides_no_client_by_sampling():
    uniform = fv.weightings.uniform()
    custom = uniform._replace(weigh=functools.partial(uniform.weigh))
    sim = fv.simulation(CONFIG, **GIVEN, weighting=custom)
    assert sim.account.cohort_size == CONFIG.clients


def test_a_diverged_run_has_the_epsilon_of_the_model_that_it_returns(monkeypatch):
    """Its records end where it diverged, and its model is of the end of the chunk."""
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 1e6)  # all rounds after the second are one chunk
    dp = {"clip": 300.0, "noise_multiplier": 1.5}
    config = dataclasses.replace(CONFIG, rounds=9, eval_every=9, dp=dp, model="linear", train="")
    with pytest.raises(fv.DivergedError) as stopped:
        fv.run(config, data=GIVEN["data"])
    history = stopped.value.history
    assert 2 < len(history.records) < 9
    assert history.summary["epsilon"] == pytest.approx(epsilon(9), rel=1e-8)


def test_algorithms_whose_server_sees_the_aggregate_alone_are_allowed():
    names = "fedavg fedavgm fedprox fedadam fedyogi fedadagrad fedntd feddecorr fedlc ditto"
    for name in names.split():
        algorithm = worlds.algorithm(name)
        state = worlds.state(worlds.uneven(), algorithm, worlds.QUADRATIC)
        with naming(name):
            program = types.SimpleNamespace(algorithm=algorithm, weighting=fv.weightings.uniform())
            accounts.check(resolved.experiment(CONFIG), program, state, worlds.hyper())
