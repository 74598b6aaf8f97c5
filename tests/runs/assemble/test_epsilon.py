"""Runs with differential privacy: epsilon against the library, resuming, trained parts, and what is refused."""

import dataclasses
import sys

import dp_accounting
import jax
import numpy as np
import pytest
from support import worlds
from support.cases import naming
from support.files import one_line
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.core import tree
from fedvg_jax.engine import privacy
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import privacy as accounts
from fedvg_jax.runs.assemble import simulation

GIVEN = {"data": worlds.images(120), "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1))}
CONFIG = fv.Config(
    clients=4, rounds=3, local_epochs=1, alpha=10.0, eval_every=1, weighting="uniform", train="^classifier/",
    dp={"clip": 0.5, "noise_multiplier": 1.5},
)  # fmt: skip
DELTA = CONFIG.dp.delta


def by_hand(event, rounds):
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    return accountant.compose(event, rounds).get_epsilon(DELTA)


def epsilon(rounds, is_own=False, **settings):
    config = dataclasses.replace(CONFIG, **settings)
    hyper = {"dp_noise": np.float32(config.dp.noise_multiplier)}
    return accounts.epsilon_after(config, fv.algorithms.fedavg(), hyper, is_own=is_own)(rounds)


def test_epsilon_is_that_of_the_library():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    sampled = by_hand(dp_accounting.SampledWithoutReplacementDpEvent(4, 2, gaussian), 3)
    everybody = by_hand(gaussian, 3)
    assert sampled < everybody
    external = {"validation": {"source": "npz"}}
    for settings in ({}, {"weighting": "native"}, {"weighting": "samples+uniform"}, {"weighting": "fedvg"} | external):
        assert epsilon(3, **settings) == pytest.approx(sampled, rel=1e-12)
    # D_val has rows of all clients: who is not sampled moves the weights, too
    for settings in ({"weighting": "samples+fedvg"}, {"is_own": True}, {"join_ratio": 1.0}):
        assert epsilon(3, **settings) == pytest.approx(everybody, rel=1e-12)
    # with little noise, the library's bound of sampled cohorts exceeds that of all clients at some orders
    little = np.float32(0.3)  # as the rounds have it
    assert epsilon(3, dp={"clip": 1.0, "noise_multiplier": 0.3}) <= by_hand(dp_accounting.GaussianDpEvent(little), 3)


@pytest.mark.parametrize(
    ("settings", "is_own", "expected"),
    [
        ({}, False, "fixed"),
        ({"weighting": "native"}, False, "modelwise"),
        ({"weighting": "samples+uniform"}, False, "modelwise"),
        ({"weighting": "fedvg"}, False, "modelwise"),
        ({"weighting": "fedvg", "fedvg": {"granularity": "blockwise"}}, False, "tensorwise"),
        ({"weighting": "samples+fedvg", "fedvg": {"granularity": "layerwise"}}, False, "tensorwise"),
        ({}, True, "tensorwise"),
        ({"dp": {}}, False, None),
    ],
    ids=str,
)
def test_every_weighting_has_its_bound(settings, is_own, expected):
    bound = accounts.sensitivity(dataclasses.replace(CONFIG, **settings), fv.algorithms.fedavg(), is_own=is_own)
    assert bound is (expected and getattr(privacy, expected))


def test_a_resumed_run_goes_on_with_its_noise_and_its_epsilon(tmp_path):
    """Noise is added to the trained part alone."""
    whole = fv.run(CONFIG, **GIVEN)
    fv.run(dataclasses.replace(CONFIG, rounds=1, out=tmp_path), **GIVEN)
    resumed = fv.run(dataclasses.replace(CONFIG, resume=str(tmp_path)), **GIVEN)
    assert_equal_runs(resumed, whole)
    assert [r["epsilon"] for r in whole.records] == pytest.approx([epsilon(n) for n in (1, 2, 3)], rel=1e-8)
    assert (resumed.summary["epsilon"], resumed.summary["delta"]) == (whole.records[-1]["epsilon"], DELTA)
    sim = fv.simulation(CONFIG, **GIVEN)
    start, end = (tree.by_path(v.params) for v in (sim.whole(sim.state.variables), whole.variables))
    assert {path for path in start if (start[path] != end[path]).any()} == {"classifier/bias", "classifier/kernel"}


def test_a_diverged_run_has_the_epsilon_of_the_model_that_it_returns(monkeypatch):
    """Its records end where it diverged, and its model is of the end of the chunk."""
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 1e9)
    settings = {"rounds": 9, "eval_every": 9, "dp": {"clip": 1e6, "noise_multiplier": 1.5}}
    with pytest.raises(fv.DivergedError) as stopped:
        fv.run(dataclasses.replace(CONFIG, **settings), **GIVEN)
    history = stopped.value.history
    assert len(history.records) < 9
    assert history.summary["epsilon"] == pytest.approx(epsilon(9), rel=1e-8)


@pytest.mark.usefixtures("traced")
def test_without_privacy_there_is_no_epsilon():
    sim = simulation.simulation(dataclasses.replace(CONFIG, dp={}), **GIVEN)
    assert sim.epsilon is None


def residual_of_weights(hyper, server, params, cohort):
    return jax.tree.map(lambda p, w: p * w.sum(), params, cohort.weights), server


OWN = {
    "messages or memories": ({"algorithm": "moon", "train": ""}, {}),
    "has messages": ({"algorithm": "scaffold"}, {}),
    "what clients keep, as errors of send topk": ({"send": "topk"}, {}),
    "residual reads the weights": ({}, {"algorithm": fv.algorithms.fedavg()._replace(residual=residual_of_weights)}),
    "running statistics of BatchNorm would get no noise": ({"train": ""}, {"task": worlds.TASK}),
    "leave selection= out": ({}, {"selection": fv.Selection(lambda population: [0, 1])}),
}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("message", "case"), OWN.items(), ids=OWN)
def test_what_has_no_bound_is_refused(message, case):
    settings, own = case
    data = worlds.random_images() if "task" in own else GIVEN["data"]
    with one_line(message):
        simulation.simulation(dataclasses.replace(CONFIG, **settings), **GIVEN | {"data": data} | own)


def test_algorithms_whose_server_sees_the_aggregate_alone_are_allowed():
    for name in ("fedavg", "fedavgm", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fedntd", "feddecorr", "ditto"):
        algorithm = worlds.algorithm(name)
        state = worlds.state(worlds.uneven(), algorithm, worlds.QUADRATIC)
        with naming(name):
            accounts.check(CONFIG, algorithm, state, worlds.hyper(), None)


@pytest.mark.usefixtures("traced")
def test_without_dp_accounting_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with one_line(r"dp.clip needs dp_accounting.*pip install 'fedvg_jax\[dp\]'"):
        simulation.simulation(CONFIG, **GIVEN)
