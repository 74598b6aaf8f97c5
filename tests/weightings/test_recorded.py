"""Numbers of the clients that are recorded beside the weights."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from benchmarks.studies.paper.clients import layer_norms
from fedvg_jax.weightings import recorded

SMALL = fv.Config(
    rounds=2,
    eval_every=1,
    clients=6,
    join_ratio=0.5,
    local_epochs=1,
    weighting="val_loss",
    alpha=1.0,
)
SMALL = dataclasses.replace(SMALL, model="linear", keep=0, seed=3)
RECORD = "client_accuracy,client_val_loss,client_drift,client_joint_fisher"
EVERYTHING = f"{RECORD}, confusion"


IMAGES = worlds.images(240)


@pytest.fixture(scope="module")
def runs():
    return fv.run(SMALL, data=IMAGES), fv.run(
        dataclasses.replace(SMALL, record=EVERYTHING), data=IMAGES
    )


def test_recording_adds_numbers_of_every_client_and_changes_no_weight(runs):
    plain, recorded = runs
    for before, after in zip(plain.records, recorded.records, strict=True):
        assert after["weights"] == pytest.approx(before["weights"], rel=1e-5)
        assert after["scores"] == pytest.approx(before["scores"], rel=1e-5)
        assert after.keys() - before.keys() == {*RECORD.split(","), "test_confusion"}
        accuracy, loss, drift, joint = (np.array(after[name]) for name in RECORD.split(","))
        assert accuracy.shape == loss.shape == drift.shape == (3,) and len(joint) == 3
        assert (accuracy <= 1).all() and (np.array([loss, drift, joint.sum(1)]) > 0).all()
    assert recorded.summary["test_accuracy_final"] == pytest.approx(
        plain.summary["test_accuracy_final"], abs=0.01
    )


def test_a_recorded_number_that_is_not_finite_excludes_no_client(runs, monkeypatch):
    """It is null in the history, and the run goes on as without it."""
    monkeypatch.setitem(
        recorded.MEASURES, "client_drift", lambda task: lambda *_: jnp.float32(jnp.nan)
    )
    records = fv.run(dataclasses.replace(SMALL, record="client_drift"), data=IMAGES).records
    for before, after in zip(runs[0].records, records, strict=True):
        assert after["client_drift"] == [None] * 3 and "diverged" not in after
        assert after["weights"] == pytest.approx(before["weights"], rel=1e-5)


def test_joint_fisher_is_in_the_order_of_the_layers():
    """The L1 norm of a tensor's Fisher diagonal is its joint Fisher information."""
    options = {"weighting": "fedvg", "record": "client_joint_fisher", "rounds": 1}
    config = dataclasses.replace(SMALL, fedvg={"signal": "fisher"}, **options)
    (record,) = fv.run(config, data=IMAGES).records
    assert np.array(record["client_joint_fisher"]) == pytest.approx(layer_norms(record), rel=1e-4)
