"""Numbers of the clients that are recorded beside the weights."""

import dataclasses

import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.core.types import UsageError

SMALL = fv.Config(
    rounds=2, eval_every=1, clients=6, join_ratio=0.5, local_epochs=1, weighting="val_loss", alpha=1.0, keep=0, seed=3
)
RECORD = "client_accuracy,client_val_loss,client_drift"
EVERYTHING = f"{RECORD}, confusion"


@pytest.fixture(scope="module")
def runs():
    return fv.run(SMALL), fv.run(dataclasses.replace(SMALL, record=EVERYTHING))


def test_recording_changes_no_weight_and_no_result(runs):
    plain, recorded = runs
    for before, after in zip(plain.records, recorded.records, strict=True):
        assert after["weights"] == pytest.approx(before["weights"], rel=1e-5)
        assert after["scores"] == pytest.approx(before["scores"], rel=1e-5)
        assert after.keys() - before.keys() == {*RECORD.split(","), "test_confusion"}
    assert recorded.summary["test_accuracy_final"] == pytest.approx(plain.summary["test_accuracy_final"], abs=0.01)


def test_every_client_of_the_cohort_has_its_numbers(runs):
    for record in runs[1].records:
        accuracy, loss, drift = (np.array(record[name]) for name in RECORD.split(","))
        assert accuracy.shape == loss.shape == drift.shape == (3,)
        assert ((accuracy >= 0) & (accuracy <= 1)).all() and (loss > 0).all() and (drift > 0).all()


def test_recorded_validation_loss_is_the_score_of_the_weighting_by_it(runs):
    for record in runs[1].records:
        assert record["client_val_loss"] == pytest.approx(record["scores"], rel=1e-5)


def test_accuracy_of_a_lone_client_is_that_of_the_global_model():
    """With one client a round, the server takes its model as it is."""
    history = fv.run(dataclasses.replace(SMALL, clients=2, join_ratio=0.5, rounds=1, record="client_accuracy"))
    (record,) = history.records
    assert record["client_accuracy"] == pytest.approx([record["test_accuracy"]])


def test_confusion_matrix_gives_the_recorded_accuracies(runs):
    for record in runs[1].records:
        matrix = np.array(record["test_confusion"])
        assert record["test_accuracy"] == pytest.approx(np.trace(matrix) / matrix.sum())
        assert record["test_balanced_accuracy"] == pytest.approx((np.diag(matrix) / matrix.sum(1)).mean())


@pytest.mark.slow
def test_cohort_in_blocks_records_the_same(runs):
    held = fv.run(dataclasses.replace(SMALL, record=RECORD, hold=2))
    for name in RECORD.split(","):
        assert held.records[0][name] == pytest.approx(runs[1].records[0][name], rel=1e-4)


def test_unknown_record_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match=r"client_acuracy.*did you mean 'client_accuracy'"):
        fv.run(fv.Config(record="client_acuracy"))
