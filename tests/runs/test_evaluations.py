"""What an evaluation is measured on, and what it selects; the rounds of a chunk."""

import dataclasses

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax.runs import chunks, loop
from fedvg_jax.runs.assemble import tables

CONFIG = fv.Config(
    clients=4,
    rounds=8,
    local_epochs=1,
    lr=0.5,
    seed=10,
    model="linear",
    weighting="uniform",
    eval_every=1,
)


def accuracy(sim, variables, rows):
    """Accuracy on rows of the data set, counted by hand."""
    x, y = (np.asarray(leaf)[rows] for leaf in (sim.data.pool.x, sim.data.pool.y))
    return float((np.asarray(sim.task.predict(*variables, fv.Batch(x, y))).argmax(1) == y).mean())


@pytest.fixture(scope="module")
def evaluated():
    """(simulation, its history, the state's variables after each round)"""
    sim, models = fv.simulation(CONFIG), []
    keep = lambda record, state: models.append(jax.device_get(state.variables))  # noqa: E731
    return sim, loop.run_simulation(sim, callbacks=[keep]), models


def test_val_and_test_are_measured_on_the_rows_of_their_names(evaluated):
    sim, history, models = evaluated
    val, test = (np.concatenate(rows) for rows in (sim.partition.val, sim.partition.test))
    assert not {*val} & {*test}
    for record, variables in zip(history.records, models, strict=True):
        assert record["val_accuracy"] == pytest.approx(accuracy(sim, variables, val), abs=1e-6)
        assert record["test_accuracy"] == pytest.approx(accuracy(sim, variables, test), abs=1e-6)


def test_the_best_round_and_its_model_are_chosen_on_validation_rows(evaluated):
    """In this run, the test rows would choose another one."""
    _, history, models = evaluated
    val = [record["val_accuracy"] for record in history.records]
    test = [record["test_accuracy"] for record in history.records]
    best = int(np.argmax(val))
    assert np.argmax(test) != best
    assert history.summary["best_val_round"] == best + 1
    assert history.summary["test_accuracy_at_best_val"] == test[best]
    assert history.summary["test_accuracy_max"] == max(test)
    jax.tree.map(np.testing.assert_array_equal, history.best_variables, models[best])


def test_every_round_is_drawn_once_and_a_chunk_leaves_what_it_cannot_hold_to_the_next():
    sim = fv.simulation(dataclasses.replace(CONFIG, rounds=1000))
    numbers, drawn, held = [], [], []
    watched = sim._replace(
        draw=lambda number, *rest: numbers.append(number) or sim.draw(number, *rest)
    )
    while len(held) < 2 * tables.MAX_ROUNDS:
        chunk = chunks.plan_chunk(watched, drawn, len(held), tables.MAX_ROUNDS + 7, sim.state)
        assert chunk is not None and len(chunk.planned) == tables.MAX_ROUNDS
        held += chunk.planned
    assert numbers == list(range(len(held) + 7)) and len(drawn) == 7
    for number, schedule in enumerate(held):
        np.testing.assert_array_equal(schedule.key, sim.schedule(number).key)
