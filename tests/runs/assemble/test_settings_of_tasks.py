"""Settings beside a user's task: refused where they have no effect, or need what the task does not return."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from support import linear
from support.files import one_line, usage_error

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg
from fedvg_jax.config import check
from fedvg_jax.core.types import Batch, UsageError
from fedvg_jax.runs.assemble import contracts, registry

CONFIG = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1")


def built(task, **changes):
    """Returns the simulation of a task on rows of three classes."""
    algorithm = changes.pop("algorithm_given", None)
    config = dataclasses.replace(CONFIG, **changes)
    return fv.simulation(config, data=linear.data(), task=task, algorithm=algorithm)


def predicting(predict):
    return linear.TASK._replace(predict=lambda params, stats, batch: predict(batch.x @ params["w"]))


def scores(num_classes, dtype=float):
    return predicting(lambda logit: jnp.stack(num_classes * [logit], -1).astype(dtype))


OUTPUTS = {
    "one logit": (linear.TASK, r"got float32 of shape \(7,\) for B = 7"),
    "too few classes": (scores(2), r"C >= 3 classes; got float32 of shape \(7, 2\)"),
    "labels": (scores(3, int), r"got int32 of shape \(7, 3\)"),
    "a dict": (predicting(lambda logit: {"logit": logit}), "got a dict"),
}

CONSUMERS = {
    "val_accuracy": ({"weighting": "val_accuracy"}, "weighting val_accuracy needs scores", "use val_loss"),
    "native": (
        {"weighting": "native", "algorithm_given": fedavg()._replace(native_weighting="val_accuracy")},
        "weighting val_accuracy needs scores",
        "use val_loss",
    ),
    **{
        name: ({"record": name}, f"record {name} needs scores", "use client_val_loss")
        for name in ("client_accuracy", "accuracy_by_client")
    },
}


@pytest.mark.parametrize(("task", "got"), OUTPUTS.values(), ids=OUTPUTS)
def test_accuracy_of_outputs_that_are_no_scores_of_the_classes_is_refused(task, got):
    with one_line(rf"needs scores \[B, C\] from task.predict.*{got}.*; use val_loss"):
        built(task, weighting="val_accuracy")


@pytest.mark.parametrize(("changes", "message", "advice"), CONSUMERS.values(), ids=CONSUMERS)
def test_every_use_of_an_accuracy_needs_scores(changes, message, advice):
    with pytest.raises(UsageError, match=rf"{message}.*{advice}"):
        built(linear.TASK, **changes)
    built(scores(4), **changes)  # more classes than the labels have


def test_scores_of_sequences_have_an_axis_for_their_places():
    batch = Batch(jnp.ones((9, 5, 3)), jnp.zeros((9, 5), int))
    contracts.check_scores(scores(2), batch, "it", "leave it", 2)
    with pytest.raises(UsageError, match=r"it needs scores \[B, 5, C\].*shape \(7, 5\) for B = 7; leave it"):
        contracts.check_scores(linear.TASK, batch, "it", "leave it", 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bfloat16"}, "precision bfloat16 has no effect beside task="),
        ({"model": "resnet18", "norm_layers": "group"}, "norm_layers group has no effect"),
        ({"record": "confusion"}, "record confusion needs 'confusion' of task.measure"),
    ],
    ids=["precision", "norm", "confusion"],
)
def test_setting_without_effect_beside_a_task_is_refused(changes, message):
    """One that the config's model would not use either is allowed."""
    with usage_error(message):
        built(linear.TASK, **changes)
    built(linear.TASK, model="mlp", conv="lax")


def test_pretrained_weights_need_a_task_with_the_layer_of_the_named_models(tmp_path):
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "weights.safetensors")
    with usage_error("init FILE needs a model with a layer classifier; give initial= for your own task"):
        built(linear.TASK, init=tmp_path / "weights.safetensors")


def test_settings_of_a_named_algorithm_do_not_act_on_a_given_one():
    named = {"algorithm": "scaffold", "departures": "scaffold-steps"}
    given, other = (built(linear.TASK, algorithm_given=fedavg(), **changes).schedule(0) for changes in (named, {}))
    assert given.num_steps.tolist() == other.num_steps.tolist()
    assert built(linear.TASK, **named).schedule(0).num_steps.tolist() != given.num_steps.tolist()


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold", "ditto"])
@pytest.mark.parametrize("setting", [{"robust": "median"}, {"departures": "server-stats"}])
def test_given_algorithm_is_refused_where_the_named_one_is(name, setting):
    config = dataclasses.replace(CONFIG, **setting)
    algorithm = registry.make_algorithm(dataclasses.replace(config, algorithm=name))
    try:
        check(dataclasses.replace(config, algorithm=name))
    except UsageError as refusal:
        expected = str(refusal).replace(f"algorithm {name}", "the algorithm")
        with usage_error(expected):
            built(linear.TASK, algorithm_given=algorithm, **setting)
    else:
        assert built(linear.TASK, algorithm_given=algorithm, **setting).algorithm


def test_robust_rule_that_ignores_weights_is_refused_beside_a_given_weighting():
    config = dataclasses.replace(CONFIG, weighting="uniform", robust="median")
    with usage_error("robust median ignores weighting="):
        fv.simulation(config, data=linear.data(), task=linear.TASK, weighting=fv.weightings.uniform())


def test_resumed_run_keeps_settings_without_effect(tmp_path):
    assert built(linear.TASK, precision="bfloat16", record="confusion", resume=str(tmp_path)).config.resume


def test_elastic_needs_one_array_of_outputs():
    task, got = OUTPUTS["a dict"]
    message = rf"elastic needs one float array \[B, ...\] from task.predict; {got}; use another algorithm"
    with pytest.raises(UsageError, match=message):
        built(task, algorithm="elastic")
