"""Accuracy by client and the confusion matrix, of the global model on the test rows."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.core.types import Batch, UsageError

SMALL = fv.Config(
    rounds=1,
    clients=4,
    join_ratio=0.5,
    local_epochs=1,
    alpha=1.0,
    keep=0,
    devices="1",
    weighting="samples",
    model="linear",
)
RECORD = "accuracy_by_client,confusion"


@pytest.fixture(scope="module")
def sim():
    return fv.simulation(dataclasses.replace(SMALL, record=RECORD))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("records") / "run"
    return fv.run(dataclasses.replace(SMALL, record=RECORD, out=out))


def test_accuracy_by_client_is_that_on_each_client_s_own_test_rows(sim, finished):
    (record,) = finished.records
    params, stats = finished.variables
    expected = []
    for rows in sim.partition.test:
        x, y = sim.arrays.x[rows], sim.arrays.y[rows]
        predicted = np.asarray(sim.task.predict(params, stats, Batch(jnp.asarray(x), jnp.asarray(y)))).argmax(-1)
        expected.append((predicted == y).mean())
    assert record["accuracy_by_client"] == pytest.approx(expected)
    assert record["accuracy_by_client_mean"] == pytest.approx(np.mean(expected))
    assert record["worst_decile"] == pytest.approx(min(expected))
    assert record["spread"] == pytest.approx(np.std(expected))


def test_recording_them_changes_no_other_entry(finished):
    (plain,), (recorded,) = fv.run(SMALL).records, finished.records
    added = {"accuracy_by_client", "accuracy_by_client_mean", "worst_decile", "spread", "test_confusion"}
    assert recorded.keys() - plain.keys() == added
    assert {k: recorded[k] for k in plain if k != "seconds"} == {k: plain[k] for k in plain if k != "seconds"}


def test_test_rows_without_clients_and_a_metric_of_that_name_are_refused():
    config = dataclasses.replace(SMALL, record="accuracy_by_client")
    with pytest.raises(UsageError, match="use --split client"):
        fv.simulation(dataclasses.replace(config, split="global"))
    with pytest.raises(UsageError, match="worst_decile"):
        fv.run(config, metrics={"worst_decile": lambda model, data: 0.0})
