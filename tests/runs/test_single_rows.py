"""Minibatches of a single row: trained on unless BatchNorm's statistics would be undefined."""

import numpy as np
import pytest
import worlds

from fedvg_jax import config, data
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.runs import registry, simulation

SIZES = [5, 4, 1]
"""Training rows of three clients, in minibatches of 2."""


def num_steps(arrays, task=None, **settings):
    """Local steps of each client in a round of one epoch."""
    settings = Config(clients=3, join_ratio=1.0, local_epochs=1, **{"batch_size": 2} | settings)
    *train, _ = np.split(np.arange(20, dtype=np.int32), np.cumsum(SIZES))
    parts = Partition(train, *[[np.arange(10, 12, dtype=np.int32)] * 3] * 2)
    executor = registry.make_executor(settings)
    schedule = simulation.make_schedule(settings, arrays, parts, executor, task=task)(0)
    return [int(schedule.num_steps[list(schedule.clients).index(client)]) for client in range(3)]


def test_single_rows_are_trained_on_except_where_batchnorm_is_undefined_or_by_the_setting():
    digits = data.load("digits")
    assert num_steps(digits) == [3, 2, 1]
    assert num_steps(digits, worlds.TASK) == num_steps(digits, single_rows="skipped") == [2, 2, 0]
    assert num_steps(digits, batch_size=1) == SIZES
    with pytest.raises(UsageError, match="--batch-size 2 or more"):
        num_steps(digits, worlds.TASK, batch_size=1)
    with pytest.raises(UsageError, match="--single-rows trained"):
        config.check(Config(batch_size=1, single_rows="skipped"))
