"""Weights of real cohorts are checked, and so is what a caller's own objects get; `tests/messages` has the mistakes."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core.types import Batch, Metrics
from fedvg_jax.engine import schedule as schedules, task_checks
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
    with pytest.raises(fv.UsageError, match=r"algorithm\.residual"):
        fv.simulation(fv.Config(clients=4, reference="server-stats"), **own)


def test_details_of_any_rank_pass_and_are_recorded_as_nested_lists():
    def detail(ones):
        return {
            "mine": ones[:, None, None] * jnp.ones((1, 2, 2)),
            "present": ones > 0,
            "broken": ones / 0,
        }

    rule = basic.uniform()._replace(detail=detail)
    sim = fv.simulation(SETTINGS, **linear.GIVEN | {"weighting": rule})
    assert sim.step(sim.state, 0)[1].detail["mine"].shape == (4, 2, 2)
    values = {name: np.asarray(value) for name, value in detail(jnp.ones(3)).items()}
    metrics = Metrics(*3 * [np.ones(3)], np.ones(3, bool), values)
    schedule = schedules.pack(
        np.arange(3), [np.zeros((1, 1), int)] * 3, [1] * 3, num_lanes=1, capacity=3
    )
    actual = json.loads(json.dumps(history.record(1, schedule, metrics, 0.0)))
    assert actual["mine"] == values["mine"].tolist() and actual["present"] == 3 * [True]
    assert actual["broken"] == 3 * [None]


def larger_in_one_tensor(hyper, ones, view):
    weights = basic.broadcast_weights(basic.shares(ones, view.participating), view)
    first, *others = jax.tree.leaves(weights)
    return jax.tree.unflatten(jax.tree.structure(weights), [first.at[0].add(0.5), *others])


def small_clients(hyper, client, data):
    """Negative for clients of over three rows."""
    return 3.5 - client.num_samples.astype(jnp.float32)


WRONG = {
    "one tensor": (
        0,
        basic.uniform()._replace(weigh=larger_in_one_tensor, terms=()),
        "1.5, the least is 0.25",
    ),
    "sum": (
        0,
        basic.uniform()._replace(weigh=lambda h, ones, view: basic.broadcast_weights(ones, view)),
        "4, the",
    ),
    "in client chunks": (2, basic.by_scalar(small_clients), r"1, the least is -0\.\d+"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_weights_of_real_cohorts_are_checked_in_every_tensor(kind):
    client_chunk, rule, values = WRONG[kind]
    settings = fv.Config(
        clients=4,
        join_ratio=1.0,
        rounds=2,
        local_epochs=1,
        alpha=10.0,
        model="linear",
        client_chunk=client_chunk,
    )
    with pytest.raises(fv.UsageError, match=rf"^round 1: weights sum to .*{values}"):
        fv.run(settings, weighting=rule, data=worlds.images(120))


def test_negative_losses_have_no_weights_by_validation_loss():
    """A density's, of which 1 / loss says nothing."""

    def loss(*arguments):
        value, stats = linear.TASK.loss(*arguments)
        return value - 50, stats

    settings = fv.Config(
        clients=3, rounds=1, local_epochs=1, alpha=10.0, weighting="samples+val_loss"
    )
    with pytest.raises(fv.UsageError, match=r"round 1: weights sum .*negative measurements"):
        fv.run(settings, data=linear.data(), task=linear.TASK._replace(loss=loss))


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
    assert rounds.index.tolist() == [1, 2] and rounds.columns.tolist() == [
        "round",
        "loss",
        "test_loss",
    ]
    assert rounds.loc[2, "test_loss"] == 1 and rounds["test_loss"].isna().tolist() == [True, False]
    assert clients.to_numpy().tolist() == [[1, 4, 0.25, 3, 5], [1, 2, 0.75, 1, 6], [2, 0, 1, 2, 7]]
    assert history.History([], {}, None, None).to_pandas().empty, "of a run without a round"


# --- settings beside a user's task act as beside the config's model; `tests/messages/objects.py` has the refusals


CONFIG = fv.Config(
    clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1"
)


def built(task=linear.TASK, given=None, **changes):
    """Returns the simulation of a task on rows of three classes."""
    config = dataclasses.replace(CONFIG, **changes)
    return fv.simulation(config, data=linear.data(), task=task, algorithm=given)


def scores(num_classes):
    def predict(params, stats, batch):
        return jnp.stack(num_classes * [batch.x @ params["w"]], -1)

    return linear.TASK._replace(predict=predict)


@pytest.mark.parametrize("setting", [{"weighting": "val_accuracy"}, {"record": "client_accuracy"}])
def test_scores_of_more_classes_than_the_labels_have_are_accuracies(setting):
    built(scores(4), **setting)


def test_scores_of_sequences_have_an_axis_for_their_places():
    batch = Batch(jnp.ones((9, 5, 3)), jnp.zeros((9, 5), int))
    task_checks.check_scores(scores(2), batch, "it", "leave it", 2)
    with usage_error("it needs floats [7, 5, C]", "float32 of shape (7, 5)"):
        task_checks.check_scores(linear.TASK, batch, "it", "leave it", 2)


def test_settings_of_a_named_algorithm_do_not_act_on_a_given_one():
    named = {"algorithm": "scaffold", "reference": "scaffold-steps"}
    given, other = (built(given=fedavg(), **changes).schedule(0) for changes in (named, {}))
    assert given.num_steps.tolist() == other.num_steps.tolist()
    assert built(**named).schedule(0).num_steps.tolist() != given.num_steps.tolist()
