"""Runs with differential privacy: epsilon against the library, resuming, trained parts, and what is refused."""

import dataclasses
import itertools
import shutil

import dp_accounting
import jax
import jax.numpy as jnp
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


def epsilon(rounds, own_reads=None, earlier=(), **settings):
    config = dataclasses.replace(CONFIG, **settings)
    hyper = {"dp.noise_multiplier": np.float32(config.dp.noise_multiplier)}
    reads = resolved.privacy(config).reads_clients if own_reads is None else own_reads
    mechanism = accounts.mechanism(resolved.cohorts(config), hyper, reads_clients=reads)
    return accounts.Account(config.dp.delta, mechanism, earlier).epsilon(rounds)


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
    for settings in (
        {},
        {"own_reads": False},
        {"weighting": "native"},
        {"weighting": "samples+uniform"},
        {"weighting": "fedvg"} | external,
    ):
        assert epsilon(3, **settings) == pytest.approx(sampled, rel=1e-12)
    # D_val has rows of all clients: who is not sampled moves the weights, too
    for settings in ({"weighting": "samples+fedvg"}, {"own_reads": True}, {"join_ratio": 1.0}):
        assert epsilon(3, **settings) == pytest.approx(everybody, rel=1e-12)
    # with little noise, the library's bound of sampled cohorts exceeds that of all clients at some orders
    little = np.float32(0.3)  # as the rounds have it
    assert epsilon(3, dp={"clip": 1.0, "noise_multiplier": 0.3}) <= by_hand(
        dp_accounting.GaussianDpEvent(little), 3
    )


@pytest.mark.parametrize(
    ("settings", "is_own", "expected"),
    [
        ({}, False, "fixed"),
        ({"weighting": "native"}, False, "modelwise"),
        ({"weighting": "samples+uniform"}, False, "modelwise"),
        ({"weighting": "fedvg"}, False, "modelwise"),
        ({"weighting": "fedvg", "fedvg": {"granularity": "blockwise"}}, False, "tensorwise"),
        (
            {"weighting": "samples+fedvg", "fedvg": {"granularity": "layerwise"}},
            False,
            "tensorwise",
        ),
        ({}, True, "tensorwise"),
        ({"dp": {}}, False, None),
    ],
    ids=str,
)
def test_every_weighting_has_its_bound(settings, is_own, expected):
    custom = Custom(weighting=fv.weightings.uniform() if is_own else None)
    method = resolve.method.make_method(dataclasses.replace(CONFIG, **settings), custom)
    bound = method.sensitivity
    assert bound is (expected and getattr(privacy, expected))


def test_a_resumed_run_goes_on_with_its_noise_and_its_epsilon(tmp_path):
    """Noise is added to the trained part alone."""
    whole = fv.run(CONFIG, **GIVEN)
    fv.run(dataclasses.replace(CONFIG, rounds=1, out=tmp_path), **GIVEN)
    resumed = fv.run(dataclasses.replace(CONFIG, resume=str(tmp_path)), **GIVEN)
    assert_equal_runs(resumed, whole)
    assert [r["epsilon"] for r in whole.records] == pytest.approx(
        [epsilon(n) for n in (1, 2, 3)], rel=1e-8
    )
    assert (resumed.summary["epsilon"], resumed.summary["delta"]) == (
        whole.records[-1]["epsilon"],
        DELTA,
    )
    sim = fv.simulation(CONFIG, **GIVEN)
    start, end = (tree.by_path(v.params) for v in (sim.whole(sim.state.variables), whole.variables))
    assert {path for path in start if (start[path] != end[path]).any()} == {
        "classifier/bias",
        "classifier/kernel",
    }


def epsilons(history):
    return [record.get("epsilon") for record in history.records]


def test_a_run_that_starts_from_a_run_on_the_same_clients_has_the_epsilon_of_both(tmp_path, caplog):
    """One that starts from another model has none, and says so."""
    config = dataclasses.replace(CONFIG, train="", rounds=2)
    first = fv.run(dataclasses.replace(config, out=tmp_path / "first"), **GIVEN)
    second = dataclasses.replace(config, init=first.folder, out=tmp_path / "second")
    assert epsilons(fv.run(second, **GIVEN)) == pytest.approx([epsilon(3), epsilon(4)], rel=1e-8)
    other = dataclasses.replace(
        second, init=tmp_path / "second/checkpoints/000002", out=None, dp={"clip": 1.0}
    )
    own = accounts.Mechanism(1.5, 4, 2)
    expected = epsilon(1, earlier=((own, 2), (own, 2)), dp=other.dp)
    assert epsilons(fv.run(other, **GIVEN))[0] == pytest.approx(expected, rel=1e-8)
    assert "no epsilon" not in caplog.text

    # after the second has started
    fv.run(dataclasses.replace(config, rounds=5, resume=str(first.folder)), **GIVEN)
    resumed = dataclasses.replace(second, rounds=3, resume=str(second.out))
    continued = fv.run(resumed, **GIVEN)
    assert epsilons(continued) == pytest.approx([epsilon(n) for n in (3, 4, 5)], rel=1e-8)
    whole = dataclasses.replace(
        second, rounds=3, init=first.folder / "checkpoints/000002", out=None
    )
    assert_equal_runs(continued, fv.run(whole, **GIVEN))

    public = dataclasses.replace(config, dp={}, out=tmp_path / "public")
    fv.run(public, **GIVEN)
    unknown = (
        dataclasses.replace(config, rounds=1, init=public.out),
        dataclasses.replace(second, partition_seed=1),
    )
    given = {"initial": first.variables}
    for settings, initial in (
        (unknown[0], {}),
        (dataclasses.replace(unknown[1], out=None), {}),
        (config, given),
    ):
        caplog.clear()
        history = fv.run(settings, **GIVEN, **initial)
        assert (
            not any(epsilons(history))
            and "epsilon" not in history.summary
            and "no epsilon" in caplog.text
        )


LOUD = dataclasses.replace(
    CONFIG, clients=20, rounds=2, train="", partition="iid", nonfinite="skip", checkpoint_every=1,
    dp={"clip": 1e-3, "noise_multiplier": 1e3},
)  # fmt: skip
"""Rounds that move the model by their noise, to a part in a thousand."""
LARGE = {"data": worlds.images(400)}


def moves(config):
    """Returns a run, and what each of its rounds adds to the model, as vectors."""

    def flat(state):
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.variables)])

    models = [flat(fv.simulation(config, **LARGE).state)]
    history = fv.run(config, **LARGE, callbacks=[lambda record, state: models.append(flat(state))])
    return history, [after - before for before, after in itertools.pairwise(models)]


def test_every_pair_of_rounds_of_runs_that_start_from_one_another_has_independent_noise(tmp_path):
    """From a run, from one of its checkpoints, and from the weights that it has exported, under one seed."""
    config = LOUD
    weights = tmp_path / "weights.safetensors"
    first, drawn = moves(dataclasses.replace(config, out=tmp_path / "first", export=weights))
    second, of_second = moves(
        dataclasses.replace(config, init=first.folder, out=tmp_path / "second")
    )
    drawn += of_second
    copy = shutil.copytree(first.folder / "checkpoints/000001", first.folder / "checkpoints/copy")
    for init in (second.folder, copy, weights):
        started, new = moves(dataclasses.replace(config, init=init))
        drawn += new
        assert "epsilon" in started.summary
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert len(drawn) == 10 and np.abs(correlations).max() < 6 / np.sqrt(len(drawn[0]))


def test_a_private_run_that_starts_from_a_run_draws_cohorts_of_its_own(tmp_path):
    """Epsilon counts cohorts that are independent of those of earlier rounds."""
    first = fv.run(dataclasses.replace(LOUD, rounds=6, out=tmp_path / "first"), **LARGE)
    second = fv.run(dataclasses.replace(LOUD, rounds=6, init=first.folder), **LARGE)
    same = [
        a["clients"] == b["clients"] for a, b in zip(first.records, second.records, strict=True)
    ]
    assert not any(same)


def test_an_own_weighting_that_reads_rows_hides_no_client_by_sampling(tmp_path):
    """Also where D_val has no rows of the clients, and the pool has."""
    x, y = GIVEN["data"]
    np.savez(tmp_path / "d_val.npz", x=x[:20], y=y[:20])
    rows = {
        "none": lambda hyper, client, data: client.num_samples.astype(jnp.float32),
        "weights": lambda hyper, client, data: jnp.abs(client.delta["classifier"]["kernel"]).sum(),
        "all rows": lambda hyper, client, data: data.pool.x.astype(jnp.float32).mean(),
        "test rows": lambda hyper, client, data: (
            1.0 + tree.gather(data.pool, data.test)[0].y.astype(float).sum()
        ),
    }
    config = dataclasses.replace(
        CONFIG, validation={"source": "npz", "data_dir": tmp_path / "d_val.npz"}
    )
    for name, signal in rows.items():
        for settings in (CONFIG, config):
            sim = fv.simulation(settings, **GIVEN, weighting=fv.weightings.by_scalar(signal))
            assert sim.account.mechanism.cohort == (4 if "rows" in name else 2), name


def test_a_diverged_run_has_the_epsilon_of_the_model_that_it_returns(monkeypatch):
    """Its records end where it diverged, and its model is of the end of the chunk."""
    monkeypatch.setattr(chunks, "CHUNK_SECONDS", 1e6)  # all rounds after the second are one chunk
    settings = {"rounds": 9, "eval_every": 9, "dp": {"clip": 500.0, "noise_multiplier": 1.5}}
    with pytest.raises(fv.DivergedError) as stopped:
        fv.run(dataclasses.replace(CONFIG, **settings), **GIVEN)
    history = stopped.value.history
    assert 2 < len(history.records) < 9
    assert history.summary["epsilon"] == pytest.approx(epsilon(9), rel=1e-8)


def test_algorithms_whose_server_sees_the_aggregate_alone_are_allowed():
    for name in (
        "fedavg",
        "fedavgm",
        "fedprox",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "fedntd",
        "feddecorr",
        "fedlc",
        "ditto",
    ):
        algorithm = worlds.algorithm(name)
        state = worlds.state(worlds.uneven(), algorithm, worlds.QUADRATIC)
        with naming(name):
            options = resolved.privacy(CONFIG), resolved.cohorts(CONFIG)
            method = algorithm, fv.weightings.uniform(), None
            accounts.check(*options, *method, state, worlds.hyper())
