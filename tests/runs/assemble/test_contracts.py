"""Weights of real cohorts are checked, and so is what a caller's own objects get; `tests/messages` has the mistakes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support import linear, worlds
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import basic

SETTINGS = fv.Config(clients=4, join_ratio=1.0, rounds=1, local_epochs=1, alpha=10.0, batch_size=8)


def test_algorithm_is_checked_on_what_server_stats_hands_to_it():
    """This one reads a parameter by name, which running statistics beside the parameters hide."""
    algorithm = worlds.algorithm("fedavg")._replace(
        residual=lambda hyper, server, params, cohort: ({"w": 0 * params["w"]}, server)
    )
    own = linear.GIVEN | {"algorithm": algorithm}
    fv.simulation(SETTINGS, **own)
    with usage_error("algorithm.residual"):
        fv.simulation(dataclasses.replace(SETTINGS, reference="server-stats"), **own)


def larger_in_one_tensor(hyper, ones, view):
    weights = basic.broadcast_weights(basic.shares(ones, view.participating), view)
    first, *others = jax.tree.leaves(weights)
    return jax.tree.unflatten(jax.tree.structure(weights), [first.at[0].add(0.5), *others])


def small_clients(hyper, client, data):
    """Negative for clients of over three rows."""
    return 3.5 - client.num_samples.astype(jnp.float32)


LARGER = basic.uniform()._replace(weigh=larger_in_one_tensor, terms=())


@pytest.mark.parametrize(
    ("client_chunk", "rule", "values"),
    [
        (0, LARGER, "1.5, the least is 0.25"),
        (2, basic.by_scalar(small_clients), "1, the least is -0"),
    ],
    ids=["one tensor", "in client chunks"],
)
def test_weights_of_real_cohorts_are_checked_in_every_tensor(client_chunk, rule, values):
    settings = dataclasses.replace(SETTINGS, model="linear", client_chunk=client_chunk)
    with usage_error("round 1: weights sum to ", values):
        fv.run(settings, weighting=rule, data=worlds.images(120))


RECORDS = [
    {
        "round": 1,
        "clients": [4, 2],
        "weights": [0.25, 0.75],
        "scores": [3.0, 1.0],
        "num_samples": [5, 6],
        "loss": 0.5,
    },
    {
        "round": 2,
        "clients": [0],
        "weights": [1.0],
        "scores": [2.0],
        "num_samples": [7],
        "loss": 0.25,
        "test_loss": 1.0,
    },
]


def test_a_history_is_two_tables():
    pytest.importorskip(
        "pandas", reason="History.to_pandas needs the extra pandas, which the extra test installs"
    )
    run_history = history.History(RECORDS, {}, None, None)
    rounds, clients = run_history.to_pandas(), run_history.to_pandas("client")
    assert rounds.index.tolist() == [1, 2]
    assert rounds.columns.tolist() == ["round", "loss", "test_loss"]
    assert rounds.loc[2, "test_loss"] == 1 and rounds["test_loss"].isna().tolist() == [True, False]
    assert clients.to_numpy().tolist() == [[1, 4, 0.25, 3, 5], [1, 2, 0.75, 1, 6], [2, 0, 1, 2, 7]]
    assert history.History([], {}, None, None).to_pandas().empty, "of a run without a round"
