"""Clients without a local step are absent, and rounds without a present client change nothing."""

import jax
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core.types import Metrics
from fedvg_jax.runs.record import history

SIZES = [4, 8, 1, 6, 0]
"""In batches of two: 2, 4, 0, 3 and 0 steps."""
COHORTS = ([0, 2, 1], [4, 3, 0], [3, 2, 4])
every_algorithm = pytest.mark.parametrize("name", worlds.ON_QUADRATICS)

rng = np.random.default_rng(0)
WORLD = worlds.quadratics(rng.uniform(0.5, 2, (5, 3)), rng.normal(size=(5, 3)), SIZES, 3)


def schedule_of(number):
    return WORLD.schedule(number, 2, probe_ratio=0.5, clients=np.array(COHORTS[number], np.int32))


def full_schedule():
    """Returns a round of all clients."""
    return WORLD._replace(cohort_size=5).schedule(0, 2, probe_ratio=0.5)


# --- rounds without a present client

ABSENT = {
    "dropped out": {"heard": np.zeros(3, bool)},
    "untrained": {
        "num_steps": np.zeros(3, np.int32),
        "plan": WORLD._replace(train=[rows[:0] for rows in WORLD.train]).schedule(2, 2).plan,
    },
}


@every_algorithm
def test_round_without_a_present_client_changes_neither_model_nor_memories(x64, name):
    """The server's momentum and duals stay too, because there is no update."""
    algorithm = worlds.algorithm(name)
    step, hyper = worlds.any_shared_round(algorithm), worlds.by_rule("samples+fedvg", momentum=0.5)
    before = worlds.shared_state(WORLD, algorithm)
    for number in range(2):
        before, _ = step(before, schedule_of(number), WORLD.data(), hyper)
    for reason, changes in ABSENT.items():
        after, metrics = step(before, schedule_of(2)._replace(**changes), WORLD.data(), hyper)
        jax.tree.map(np.testing.assert_array_equal, after._replace(round=before.round), before)
        assert after.round == before.round + 1 and not metrics.weights.any(), reason


# --- the history


def metrics_of(loss, finite=None):
    loss = np.array(loss)
    finite = np.isfinite(loss) if finite is None else np.array(finite)
    ones = np.ones(len(loss))
    return Metrics(ones, ones, loss, finite, {})


def test_train_loss_of_a_record_is_the_mean_over_trained_clients():
    """Clients with 2, 4, 0, 3 and 0 steps, in sampling order; the loss is 0 without a step and NaN after divergence."""
    schedule = full_schedule()
    loss = np.where(schedule.num_steps > 0, 1.0 + schedule.num_steps, 0.0)
    assert history.record(1, schedule, metrics_of(loss), 0.0)["train_loss"] == 4.0  # (3 + 5 + 4) / 3
    loss[schedule.num_steps == 4] = np.nan
    assert history.record(1, schedule, metrics_of(loss), 0.0)["train_loss"] == 3.5
    untrained = schedule._replace(num_steps=np.zeros(5, np.int32))
    assert history.record(1, untrained, metrics_of(np.zeros(5)), 0.0)["train_loss"] is None


def test_record_lists_untrained_clients():
    schedule = full_schedule()
    record = history.record(1, schedule, metrics_of(np.ones(5)), 0.0)
    assert sorted(record["untrained"]) == [2, 4] and "dropped" not in record
    assert "untrained" not in history.record(1, schedule._replace(num_steps=np.ones(5)), metrics_of(np.ones(5)), 0.0)
