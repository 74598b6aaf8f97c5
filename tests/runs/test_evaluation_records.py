"""Accuracy by client and calibration, of the global model on the test rows."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.core.types import Batch, Task, UsageError, Variables
from fedvg_jax.engine import evaluate, executors

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
RECORD = "accuracy_by_client,calibration"


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


def test_bins_hold_all_labels_and_give_the_recorded_accuracy(finished):
    (record,) = finished.records
    bins = np.array(record["test_calibration"], float)
    counts, confidence, accuracy = bins[bins[:, 0] > 0].T
    assert len(bins) == evaluate.NUM_BINS
    assert counts @ accuracy / counts.sum() == pytest.approx(record["test_accuracy"])
    assert counts @ abs(accuracy - confidence) / counts.sum() == pytest.approx(record["test_calibration_error"])


def test_recording_them_changes_no_other_entry(finished):
    (plain,), (recorded,) = fv.run(SMALL).records, finished.records
    added = {"accuracy_by_client", "accuracy_by_client_mean", "worst_decile", "spread"}
    assert recorded.keys() - plain.keys() == added | {"test_calibration", "test_calibration_error"}
    assert {k: recorded[k] for k in plain if k != "seconds"} == {k: plain[k] for k in plain if k != "seconds"}


@pytest.mark.parametrize("executor", [None, executors.sharded(2, 1)], ids=["one device", "two devices"])
def test_details_place_every_row_and_bin_by_its_confidence(executor):
    """Logits have confidence 3/4, 1/2 and 1/3 for x = 1, 0 and -1; 1/3 = 5/15 is the end of the fifth bin."""

    def predict(params, stats, batch):
        third = jnp.where(batch.x < 0, 0, -jnp.inf)
        return jnp.stack([jnp.zeros_like(batch.x), jnp.where(batch.x > 0, jnp.log(3.0), 0), third], -1)

    def measure(params, stats, batch, mask):
        return {"rows": mask.sum()}

    task = Task(None, None, predict, measure, None, None)  # pyright: ignore[reportArgumentType]
    batch = Batch(jnp.array([1.0, 0.0, 1.0, 1.0, -1.0]), jnp.array([1, 1, 0, 1, 0]))
    rows = jnp.array([[3, 2], [1, 0], [0, 4], [4, -1], [-1, -1]])
    actual = evaluate.make_evaluate(task, executor, is_detailed=True)(Variables({}, {}), batch, rows)
    assert actual.sums["rows"] == 7
    assert actual.correct.tolist() == [[1, 0], [0, 1], [1, 1], [1, 0], [0, 0]]
    used = {int(i): actual.bins[:, i].tolist() for i in np.flatnonzero(actual.bins[0])}
    assert used == {4: [2, pytest.approx(2 / 3), 2], 7: [1, 0.5, 0], 11: [4, pytest.approx(3.0), 3]}


def test_test_rows_without_clients_and_a_metric_of_that_name_are_refused():
    config = dataclasses.replace(SMALL, record="accuracy_by_client")
    with pytest.raises(UsageError, match="use --split client"):
        fv.simulation(dataclasses.replace(config, split="global"))
    with pytest.raises(UsageError, match="worst_decile"):
        fv.run(config, metrics={"worst_decile": lambda model, data: 0.0})
