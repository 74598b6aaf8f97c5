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
    local_epochs=1,
    weighting="val_loss",
    alpha=1.0,
    model="linear",
    seed=3,
)
RECORD = "client_accuracy,client_val_loss,client_drift,client_joint_fisher"


def run(**settings):
    return fv.run(dataclasses.replace(SMALL, **settings), data=worlds.images(240))


@pytest.fixture(scope="module")
def plain():
    return run()


def test_recording_adds_numbers_of_every_client_and_changes_no_weight(plain):
    recorded = run(record=f"{RECORD}, confusion")
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


def test_a_recorded_number_that_is_not_finite_excludes_no_client(plain, monkeypatch):
    """It is null in the history, and the run goes on as without it."""
    monkeypatch.setitem(
        recorded.MEASURES, "client_drift", lambda task: lambda *_: jnp.float32(jnp.nan)
    )
    records = run(record="client_drift").records
    for before, after in zip(plain.records, records, strict=True):
        assert after["client_drift"] == [None] * 3 and "diverged" not in after
        assert after["weights"] == pytest.approx(before["weights"], rel=1e-5)


def test_joint_fisher_is_in_the_order_of_the_layers():
    """The L1 norm of a tensor's Fisher diagonal is its joint Fisher information."""
    changes = {"weighting": "fedvg", "fedvg": {"signal": "fisher"}, "rounds": 1}
    (record,) = run(record="client_joint_fisher", **changes).records
    assert np.array(record["client_joint_fisher"]) == pytest.approx(layer_norms(record), rel=1e-4)
