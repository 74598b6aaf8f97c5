"""The rows that the devices get for a chunk of rounds are those that its clients train on."""

import types

import numpy as np
from support import worlds

from fedvg_jax.runs.placement import pool_rows


def test_rounds_fit_until_their_different_rows_exceed_the_capacity():
    rows = np.split(np.random.default_rng(2).permutation(600).astype(np.int32), 30)
    world = worlds.World(None, rows, None, None, batch_size=8, cohort_size=12, local_epochs=1)
    rounds = [world.schedule(number) for number in range(4)]
    union = set()
    for count, schedule in enumerate(rounds, 1):
        union |= {row for client in schedule.clients for row in rows[client].tolist()}
        for capacity, fitting in ((len(union), count), (len(union) - 1, max(1, count - 1))):
            pool = types.SimpleNamespace(y=range(600))
            host = pool_rows.HostRows(pool, None, capacity, 1, None)
            assert len(host.fit(rounds[:count])) == fitting
