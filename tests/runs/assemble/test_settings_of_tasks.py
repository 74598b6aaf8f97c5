"""Settings beside a user's task act as beside the config's model; `tests/messages/objects.py` has the refusals."""

import dataclasses

import jax.numpy as jnp
import pytest
from support import linear
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core.types import Batch
from fedvg_jax.runs.assemble import contracts

CONFIG = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1")


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
    contracts.check_scores(scores(2), batch, "it", "leave it", 2)
    with usage_error("it needs floats [7, 5, C]", "float32 of shape (7, 5)"):
        contracts.check_scores(linear.TASK, batch, "it", "leave it", 2)


def test_settings_of_a_named_algorithm_do_not_act_on_a_given_one():
    named = {"algorithm": "scaffold", "departures": "scaffold-steps"}
    given, other = (built(given=fedavg(), **changes).schedule(0) for changes in (named, {}))
    assert given.num_steps.tolist() == other.num_steps.tolist()
    assert built(**named).schedule(0).num_steps.tolist() != given.num_steps.tolist()
