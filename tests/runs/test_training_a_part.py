"""Runs that train a part of a model: what is frozen, sent, kept, exported and refused."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support import worlds
from support.files import one_line
from support.small_sweeps import timeless

import fedvg_jax as fv
from fedvg_jax.core import tree
from fedvg_jax.views import display

GIVEN = {
    "data": worlds.images(120),
    "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1)),
}
CONFIG = fv.Config(
    clients=4,
    join_ratio=1.0,
    rounds=2,
    local_epochs=1,
    alpha=10.0,
    eval_every=1,
    lr=1.0,
    weighting="uniform",
)
HEAD = dataclasses.replace(CONFIG, train="^classifier/")


def run(config=HEAD, **settings):
    return fv.run(dataclasses.replace(config, **settings), **GIVEN)


def start():
    return fv.simulation(CONFIG, **GIVEN).state.variables


def test_a_frozen_tensor_never_changes():
    """In client chunks on two devices, with rows and states on the host, too."""
    scaffold = {"algorithm": "scaffold", "weighting": "fedvg"}
    ended = run(**scaffold, client_chunk=2, placement="host", devices="2")
    for path, initial in tree.by_path(start().params).items():
        is_equal = bool((tree.by_path(ended.variables.params)[path] == initial).all())
        assert is_equal is path.startswith("fc1/"), path
    worlds.assert_close(ended.variables, run(**scaffold).variables, 1e-5)
    assert ended.records[-1]["bytes_up"] == 4 * 2 * 4 * (4 * 3 + 3), (
        "four clients' heads and changes of c"
    )


def test_a_resumed_run_goes_on_with_its_base_and_refuses_another(tmp_path):
    whole, out = run(), tmp_path / "run"
    run(out=out, rounds=1, checkpoint_every=1)
    kept = fv.History.load(out).variables
    assert tree.paths(kept) == ["params/classifier/bias", "params/classifier/kernel"]
    with one_line(r"ran with other frozen base"):
        fv.run(
            dataclasses.replace(HEAD, resume=str(out)),
            initial=jax.tree.map(lambda x: x + 1, start()),
            **GIVEN,
        )
    resumed = run(resume=str(out))
    assert timeless(resumed.records) == timeless(whole.records)
    worlds.assert_close(resumed.variables, whole.variables, 0)
    worlds.assert_close(resumed.best_variables.params["fc1"], start().params["fc1"], 0)
    with one_line(r"other shapes.*--export"):
        run(CONFIG, init=out)
    old = fv.History.load(out)
    worlds.assert_close(fv.simulation(HEAD, **GIVEN).whole(old.variables), whole.variables, 0)


def test_metrics_and_accuracies_by_client_are_of_the_whole_model():
    """A head that did not move has the accuracy of the initial model; local tensors are of the trained part."""
    config = dataclasses.replace(
        HEAD, lr=1e-30, local="/bias$", record="accuracy_by_client,personal_accuracy"
    )
    config = dataclasses.replace(config, weighting="uniform")
    norm = {"norm": lambda model, data: jnp.abs(model.params["fc1"]["kernel"]).sum()}
    last = fv.run(config, metrics=norm, **GIVEN).records[-1]
    sim = fv.simulation(config, **GIVEN)
    initial = sim.whole(sim.state.variables)
    expected = fv.evaluate(sim, initial)
    assert last["norm"] == pytest.approx(float(norm["norm"](initial, None)))
    assert last["test_accuracy"] == pytest.approx(expected["test_accuracy"])
    assert fv.evaluate(sim, sim.state.variables) == expected
    assert last["personal_accuracy"] == last["accuracy_by_client"]
    worlds.assert_close(sim.validation_loss(sim.state), expected["val_loss"], 1e-6)
    assert "31 % are trained" not in display.start_text(
        sim
    ) and "of which 43 % are trained" in display.start_text(sim)
    with one_line("local fc1 matches no tensor; there are classifier/bias"):
        run(local="fc1")


def test_an_own_weighting_is_of_the_trained_part():
    last = fv.run(HEAD, weighting=fv.weightings.fedvg, **GIVEN).records[-1]
    assert last["scores"] == run(weighting="fedvg").records[-1]["scores"]
