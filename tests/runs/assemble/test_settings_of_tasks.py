"""Settings beside a user's task act as beside the config's model; `tests/messages/objects.py` has the refusals."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from support import linear
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg
from fedvg_jax.config import check
from fedvg_jax.core.types import Batch
from fedvg_jax.runs.assemble import contracts, registry

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


def test_setting_that_the_configs_model_would_not_use_either_is_allowed():
    built(model="mlp", conv="lax")


def test_pretrained_weights_need_a_task_with_the_layer_of_the_named_models(tmp_path):
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "weights.safetensors")
    with usage_error("classifier"):
        built(init=tmp_path / "weights.safetensors")


def test_settings_of_a_named_algorithm_do_not_act_on_a_given_one():
    named = {"algorithm": "scaffold", "departures": "scaffold-steps"}
    given, other = (built(given=fedavg(), **changes).schedule(0) for changes in (named, {}))
    assert given.num_steps.tolist() == other.num_steps.tolist()
    assert built(**named).schedule(0).num_steps.tolist() != given.num_steps.tolist()


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "ditto"])
@pytest.mark.parametrize("setting", [{"robust": "median"}, {"departures": "server-stats"}])
def test_given_algorithm_is_refused_where_the_named_one_is(name, setting):
    config = dataclasses.replace(CONFIG, algorithm=name, **setting)
    algorithm = registry.make_algorithm(config)
    try:
        check(config)
    except fv.UsageError as refusal:
        with usage_error(str(refusal).replace(f"algorithm {name}", "the algorithm")):
            built(given=algorithm, **setting)
    else:
        built(given=algorithm, **setting)


def test_resumed_run_keeps_settings_without_effect(tmp_path):
    assert built(precision="bfloat16", record="confusion", resume=str(tmp_path)).config.resume
