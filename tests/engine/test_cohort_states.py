"""Rows that devices divide among them are read and written as if one device held them all."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedvg_jax.engine import cohort_states

NUM_ROWS = 12


def sharding_over(num_devices):
    return NamedSharding(Mesh(jax.devices()[:num_devices], ("devices",)), PartitionSpec("devices"))


def client_states():
    """Floats, with infinity and NaN, integers and bools."""
    floats = np.arange(NUM_ROWS * 2, dtype=np.float32).reshape(NUM_ROWS, 2) - 5
    floats[4, 1], floats[7, 0] = np.nan, np.inf
    return {
        "float": floats,
        "int": np.arange(NUM_ROWS, dtype=np.int32) * 2**27 - 7,
        "bool": np.arange(NUM_ROWS) % 3 == 0,
    }


@pytest.mark.parametrize("num_devices", [2, 4])
def test_rows_are_taken_and_put_exactly(num_devices):
    """Rows of every device, in any order; a row past the end is not written."""
    sharding, every = sharding_over(num_devices), client_states()
    rows, targets = np.array([7, 1, 11, 4, 0], np.int32), np.array([1, 11, 6, 12, 5], np.int32)

    def exchange(every, rows, targets):
        taken = cohort_states.take_rows(every, rows, sharding)
        return taken, cohort_states.put_rows(every, targets, taken, sharding)

    taken, changed = jax.jit(exchange)(jax.device_put(every, sharding), rows, targets)
    jax.tree.map(np.testing.assert_array_equal, taken, jax.tree.map(lambda leaf: leaf[rows], every))
    kept = targets < NUM_ROWS
    expected = jax.tree.map(np.copy, every)
    for kind, leaf in every.items():
        expected[kind][targets[kept]] = leaf[rows[kept]]
    jax.tree.map(np.testing.assert_array_equal, changed, expected)
    held = {
        len(shard.data) for leaf in jax.tree.leaves(changed) for shard in leaf.addressable_shards
    }
    assert held == {NUM_ROWS // sharding.mesh.size}
